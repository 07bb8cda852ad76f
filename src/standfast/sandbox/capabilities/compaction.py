"""Compaction by the provider: ask for it above a number of tokens, and send nothing before its last result."""

from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import BaseModel, Field

from standfast.base.item_pairs import get_item_type
from standfast.base.items import Item
from standfast.sandbox.capabilities.capability import Capability

DEFAULT_THRESHOLD = 240_000
_CONTEXT_WINDOWS = {
    **dict.fromkeys(("gpt-5", "gpt-5.1", "gpt-5.2", "gpt-5.3-codex", "gpt-5.4-mini", "gpt-5.4-nano"), 400_000),
    **dict.fromkeys(("gpt-4.1", "gpt-5.4", "gpt-5.5", "gpt-5.6"), 1_047_576),
    **dict.fromkeys(("gpt-4o", "gpt-5-chat"), 128_000),
    **dict.fromkeys(("o1", "o1-pro", "o3", "o4", "codex-mini"), 200_000),
}


class CompactionModelInfo(BaseModel):
    """The number of tokens that a model can take."""

    context_window: int

    @classmethod
    def maybe_for_model(cls, model: str) -> "CompactionModelInfo | None":
        """Return the context window of a model, None if it is not known."""
        model = model.rpartition("/")[2]
        found = [name for name in _CONTEXT_WINDOWS if model == name or model.startswith(f"{name}-")]
        return cls(context_window=_CONTEXT_WINDOWS[max(found, key=len)]) if found else None

    @classmethod
    def for_model(cls, model: str) -> "CompactionModelInfo":
        """Return the context window of a model; raise if it is not known."""
        found = cls.maybe_for_model(model)
        if found is None:
            raise ValueError(f"the context window of {model!r} is not known: give it as context_window")
        return found


class CompactionPolicy(BaseModel, ABC):
    """When the provider compacts the conversation."""

    type: str

    @abstractmethod
    def compaction_threshold(self, sampling_params: dict[str, Any]) -> int:
        """Return the number of tokens above which it does."""


class StaticCompactionPolicy(CompactionPolicy):
    """Compact above a fixed number of tokens."""

    type: Literal["static"] = "static"
    threshold: int = DEFAULT_THRESHOLD

    def compaction_threshold(self, sampling_params: dict[str, Any]) -> int:
        return self.threshold


class DynamicCompactionPolicy(CompactionPolicy):
    """Compact above a share of the model's context window."""

    type: Literal["dynamic"] = "dynamic"
    model_info: CompactionModelInfo
    threshold: float = Field(default=0.9, ge=0, le=1)

    def compaction_threshold(self, sampling_params: dict[str, Any]) -> int:
        return int(self.model_info.context_window * self.threshold)


class Compaction(Capability):
    """Long conversations are compacted by the provider.

    Without a policy that happens when nine tenths of the model's context window are full, or above 240,000 tokens if
    the window is not known.
    """

    type: Literal["compaction"] = "compaction"
    policy: CompactionPolicy | None = None

    def sampling_params(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        policy = self.policy or _choose_policy(sampling_params.get("model"))
        threshold = policy.compaction_threshold(sampling_params)
        return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}

    def process_context(self, context: list[Item]) -> list[Item]:
        places = [place for place, item in enumerate(context) if get_item_type(item) == "compaction"]
        return context[places[-1] :] if places else context


def _choose_policy(model: object) -> CompactionPolicy:
    info = CompactionModelInfo.maybe_for_model(model) if isinstance(model, str) else None
    return StaticCompactionPolicy() if info is None else DynamicCompactionPolicy(model_info=info)
