"""Compaction of any session by OpenAI's ``responses.compact``."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeGuard, get_args, runtime_checkable

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.ids import validate_name
from standfast.base.item_pairs import CALL_TYPE_BY_OUTPUT_TYPE, PairingProblem, drop_unpaired, find_unpaired
from standfast.base.items import Item
from standfast.base.validation import validate_integer
from standfast.history.openai.client import LazyOpenAIClient, to_input_item, to_plain_dict, translate_openai_errors
from standfast.history.openai.replacement import HistorySnapshot, read_snapshot, replace_prefix
from standfast.history.session import Session, SessionABC, SessionSettings, use_run_context, with_run_context

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OpenAIResponsesCompactionMode: TypeAlias = Literal["previous_response_id", "input", "auto"]

DEFAULT_THRESHOLD = 10
"""The number of items, not counting user messages and compactions, from which on a history is compacted."""
INPUT_ROLES = ("user", "system", "developer")

_MODES = get_args(OpenAIResponsesCompactionMode)
_MODEL_PATTERN = re.compile(r"(openai/)?(ft:)?(gpt-|chatgpt-|codex-|computer-use-|o\d)")


class OpenAIResponsesCompactionArgs(TypedDict, total=False):
    """Facts about the turn that was just saved.

    ``store`` is whether the server stored the response; ``force`` compacts regardless of the trigger.
    """

    response_id: str
    compaction_mode: OpenAIResponsesCompactionMode
    store: bool
    force: bool


@runtime_checkable
class OpenAIResponsesCompactionAwareSession(Session, Protocol):
    """A session whose ``run_compaction`` must be called after each saved turn."""

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Compact the history if the trigger has been passed."""
        ...


def is_openai_responses_compaction_aware_session(
    session: Session | None,
) -> TypeGuard[OpenAIResponsesCompactionAwareSession]:
    """Return whether the session compacts itself through the Responses API."""
    return callable(getattr(session, "run_compaction", None))


class CompactionRecord(msgspec.Struct, frozen=True):
    """One compaction request: its id, model, mode, and usage as reported by the API."""

    id: str
    model: str
    mode: str
    usage: dict[str, Any]


class OpenAIResponsesCompactionSession(SessionABC):
    """A session that compacts the history of ``underlying_session`` when it has grown.

    The replacement is one commit if the underlying session supports that (``splice_items`` or ``replace_items`` with
    ``expected``), and the replaced items stay readable as an earlier generation. Any other session is cleared and
    refilled; if that fails or is cancelled, its previous items are restored.

    :meth:`take_compactions` returns the usage: after each :meth:`run_compaction` a runner takes the new compactions
    and adds each ``usage`` to its own as one request.
    """

    def __init__(
        self,
        session_id: str,
        underlying_session: Session,
        *,
        client: "AsyncOpenAI | None" = None,
        model: str = "gpt-4.1",
        compaction_mode: OpenAIResponsesCompactionMode = "auto",
        should_trigger_compaction: Callable[[dict[str, Any]], bool] | None = None,
        max_rollback_items: int | None = None,
    ) -> None:
        self.max_rollback_items = validate_integer("max_rollback_items", max_rollback_items, minimum=1, optional=True)
        reject_conversations_session(underlying_session)
        self.session_id = validate_name("session id", session_id)
        self.underlying_session = underlying_session
        self.model = validate_model(model, client)
        self.compaction_mode = validate_mode(compaction_mode)
        self.should_trigger_compaction = should_trigger_compaction or is_over_threshold
        self._api = LazyOpenAIClient(client, feature="OpenAIResponsesCompactionSession")
        self._compaction_lock = asyncio.Lock()
        self._write_lock = asyncio.Lock()
        self._compactions: list[CompactionRecord] = []
        self._deferred = False  # the trigger was passed while calls had no output yet
        self._last_response: tuple[str | None, bool | None] = (None, None)  # its id and whether the server stored it
        self._smallest_window: int | None = None  # the smallest limit of a read since the last compaction

    @property
    def client(self) -> "AsyncOpenAI":
        """The client of the caller, or one that this session created."""
        return self._api.get()

    @property
    def session_settings(self) -> SessionSettings | None:
        """The settings of the underlying session."""
        return getattr(self.underlying_session, "session_settings", None)

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        """The settings of the underlying session."""
        self.underlying_session.session_settings = settings

    async def aclose(self) -> None:
        """Close the client if this session created it. The underlying session stays open."""
        await self._api.aclose()

    # --- the four methods -----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items, or the latest ``limit`` of them, oldest first."""
        items = await with_run_context(self.underlying_session.get_items)(limit)
        window = limit if limit is not None else self._get_default_limit()
        if window is not None:
            self._smallest_window = window if self._smallest_window is None else min(window, self._smallest_window)
        return items

    async def add_items(self, items: list[Item]) -> None:
        """Append items."""
        async with self._write_lock:
            self._forget_response()
            await with_run_context(self.underlying_session.add_items)(items)

    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it, or None if the session is empty."""
        async with self._write_lock:
            self._forget_response()
            return await with_run_context(self.underlying_session.pop_item)()

    async def clear_session(self) -> None:
        """Remove all items."""
        async with self._write_lock:
            self._forget_response()
            self._deferred = False
            await with_run_context(self.underlying_session.clear_session)()

    # --- compaction -----------------------------------------------------------------------------

    async def run_compaction(
        self, args: OpenAIResponsesCompactionArgs | None = None, *, wrapper: object | None = None
    ) -> None:
        """Compact the whole history if the trigger has been passed, or unconditionally with ``force``.

        The compaction is deferred while a tool call of the last response has no output, or while the response chain
        has not seen the output; the next possible call then compacts regardless of the trigger. Items that are added
        during the request follow the compacted ones. A failure leaves the history unchanged.

        A response chain contains only the items that were sent to the model. If the history was read with a limit, and
        so incompletely, the items themselves are sent for compaction in every mode.

        ``wrapper`` is the context of a run; it is passed on to a session that takes it.
        """
        args = validate_args(args)
        with use_run_context(wrapper):
            await self._run_compaction(args)

    async def _run_compaction(self, args: OpenAIResponsesCompactionArgs) -> None:
        async with self._compaction_lock:
            before = await read_snapshot(self.underlying_session)
            response_id, store = self._update_last_response(args)
            requested = args.get("compaction_mode") or self.compaction_mode
            mode = resolve_mode(
                requested, response_id=response_id, store=store, chain_complete=self._is_chain_complete(before)
            )
            if not before.items:
                return
            if not (args.get("force") or self._deferred or await self._should_compact(mode, response_id, before)):
                return
            if self.max_rollback_items is not None and len(before.items) > self.max_rollback_items:
                raise InvalidInput(
                    f"session {self.session_id!r} has more than {self.max_rollback_items} items (max_rollback_items):"
                    " it was not compacted"
                )
            covered = count_covered_items(before.items) if mode == "previous_response_id" else len(before.items)
            if has_pending_call(before.items) or has_output(before.items[covered:]):
                self._deferred = True
                return
            compacted = await self._compact(mode, response_id, before.items)
            async with self._write_lock:
                await replace_prefix(self.underlying_session, before, covered, compacted)
                self._forget_response()
                self._deferred, self._smallest_window = False, None

    def take_compactions(self) -> list[CompactionRecord]:
        """Return the compactions since the last call, also those whose result could not be stored."""
        taken, self._compactions = self._compactions, []
        return taken

    async def _compact(self, mode: str, response_id: str | None, items: list[Item]) -> list[Item]:
        source: dict[str, Any] = (
            {"previous_response_id": response_id} if mode == "previous_response_id" else {"input": drop_unpaired(items)}
        )
        action = f"compacting session {self.session_id!r}"
        with translate_openai_errors(action, resource=("response", response_id or "of this session"), mutating=False):
            response = await self.client.responses.compact(model=self.model, **source)
            usage = getattr(response, "usage", None)
            compaction = CompactionRecord(
                id=str(getattr(response, "id", "")),
                model=self.model,
                mode=mode,
                usage=to_plain_dict(usage) if usage else {},
            )
            compacted = [to_input_item(item) for item in getattr(response, "output", None) or ()]
            self._compactions.append(compaction)
            if not compacted:
                raise ValueError("it contains no items")
            reject_dangling_parts(compacted)
        return compacted

    async def _should_compact(self, mode: str, response_id: str | None, before: HistorySnapshot) -> bool:
        decision: bool | Awaitable[bool] = self.should_trigger_compaction(
            {
                "response_id": response_id,
                "compaction_mode": mode,
                "compaction_candidate_items": select_candidates(before.items),
                "session_items": list(before.items),
            }
        )
        return bool(await decision if inspect.isawaitable(decision) else decision)

    def _update_last_response(self, args: OpenAIResponsesCompactionArgs) -> tuple[str | None, bool | None]:
        """Return the last response: that of ``args``, else that of an earlier call if the history has not changed."""
        previous_id, store = self._last_response
        response_id = args.get("response_id")
        if response_id is not None and response_id != previous_id:
            store = None
        self._last_response = (response_id or previous_id, args.get("store", store))
        return self._last_response

    def _forget_response(self) -> None:
        self._last_response = (None, None)

    def _is_chain_complete(self, before: HistorySnapshot) -> bool:
        """Return True if the last response can be based on the complete history, judging by the reads so far."""
        windows = [window for window in (self._smallest_window, self._get_default_limit()) if window is not None]
        read_completely = all(window >= len(before.items) for window in windows)
        return read_completely and before.is_complete and count_covered_items(before.items) > 0

    def _get_default_limit(self) -> int | None:
        return getattr(self.session_settings, "limit", None)


# --- decisions ----------------------------------------------------------------------------------


def select_candidates(items: Sequence[Item]) -> list[Item]:
    """Return the items that compaction makes shorter: all except user messages and earlier compactions."""
    return [item for item in items if item.get("role") != "user" and item.get("type") != "compaction"]


def is_over_threshold(context: dict[str, Any]) -> bool:
    """The default trigger."""
    return len(context["compaction_candidate_items"]) >= DEFAULT_THRESHOLD


def resolve_mode(requested: str, *, response_id: str | None, store: bool | None, chain_complete: bool) -> str:
    """Return the mode of a request: ``auto`` becomes one of the others, and an incomplete chain is never used."""
    if requested == "previous_response_id" and response_id is None:
        raise InvalidInput("compaction by previous_response_id needs the response_id of the last response")
    if not chain_complete or (requested == "auto" and (store is False or response_id is None)):
        return "input"
    return "previous_response_id" if requested == "auto" else requested


def count_covered_items(items: Sequence[Item]) -> int:
    """Return how many items from the start are part of the response chain: up to the last item of the model."""
    for index in range(len(items), 0, -1):
        item = items[index - 1]
        if item.get("role", "assistant") == "assistant" and item.get("type") not in CALL_TYPE_BY_OUTPUT_TYPE:
            return index
    return 0


def has_output(items: Sequence[Item]) -> bool:
    return any(item.get("type") in CALL_TYPE_BY_OUTPUT_TYPE for item in items)


def has_pending_call(items: Sequence[Item]) -> bool:
    """Return True if a call of the last response has no output yet. Older calls will never get one."""
    last_input = max((index for index, item in enumerate(items) if item.get("role") in INPUT_ROLES), default=-1)
    return any(
        entry.index > last_input and entry.problem is PairingProblem.CALL_WITHOUT_OUTPUT
        for entry in find_unpaired(items)
    )


# --- validation ---------------------------------------------------------------------------------

_REFERENCES = {"input_image": ("image_url", "file_id"), "input_file": ("file_id", "file_data", "file_url")}


def reject_dangling_parts(items: Sequence[Item]) -> None:
    """Raise :class:`ValueError` if an image or file in the items has no content: no later request could send it."""
    for index, item in enumerate(items):
        for part in (item, *list_parts(item.get("content")), *list_parts(item.get("output"))):
            names = _REFERENCES.get(str(part.get("type")))
            if names is not None and not any(part.get(name) for name in names):
                raise ValueError(f"item {index} has an {part['type']} without {' or '.join(names)}")


def list_parts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def reject_conversations_session(session: object) -> None:
    """Raise :class:`InvalidInput` for a conversation on the server, which the server compacts itself."""
    wrapped: object | None = session
    while wrapped is not None:
        # By name, to reject the class of openai-agents as well.
        if any(kind.__name__ == "OpenAIConversationsSession" for kind in type(wrapped).__mro__):
            raise InvalidInput("an OpenAIConversationsSession cannot be compacted: the server keeps its history")
        wrapped = getattr(wrapped, "underlying_session", None)


def validate_model(model: object, client: object) -> str:
    if not isinstance(model, str):
        raise InvalidInput(f"model must be a string, not {type(model).__name__}")
    is_azure = "Azure" in type(client).__name__  # deployments in Azure have arbitrary names
    if not is_azure and not _MODEL_PATTERN.match(model):
        raise InvalidInput(f"responses.compact supports only models of OpenAI, got {model!r}")
    return model


def validate_mode(mode: object) -> OpenAIResponsesCompactionMode:
    if mode not in _MODES:
        raise InvalidInput(f"unknown compaction mode {mode!r}; expected one of {', '.join(_MODES)}")
    return mode  # type: ignore[return-value]


def validate_args(args: OpenAIResponsesCompactionArgs | None) -> OpenAIResponsesCompactionArgs:
    args = args or {}
    unknown = sorted(set(args) - set(OpenAIResponsesCompactionArgs.__annotations__))
    if unknown:
        raise InvalidInput(f"unknown compaction arguments: {', '.join(unknown)}")
    if args.get("compaction_mode") is not None:
        validate_mode(args["compaction_mode"])
    response_id = args.get("response_id")
    if response_id is not None and not isinstance(response_id, str):
        raise InvalidInput(f"response_id must be a string, not {type(response_id).__name__}")
    return args
