"""A history that OpenAI shortens when it has grown: ``responses.compact`` around any session."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeGuard, get_args, runtime_checkable

import msgspec

from holdfast.base.errors import InvalidInput
from holdfast.base.ids import checked_name
from holdfast.base.items import Item
from holdfast.base.pairing import CALL_OF, Problem, paired, unpaired
from holdfast.history.contract import Session, SessionABC, SessionSettings
from holdfast.history.openai_api import ApiClient, as_input, asking, plain
from holdfast.history.replacement import Snapshot, replace_beginning, snapshot

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OpenAIResponsesCompactionMode: TypeAlias = Literal["previous_response_id", "input", "auto"]

THRESHOLD = 10
"""How many items that are neither user messages nor compactions make a history worth compacting."""

_MODES = get_args(OpenAIResponsesCompactionMode)
_MODEL = re.compile(r"(openai/)?(ft:)?(gpt-|chatgpt-|codex-|computer-use-|o\d)")


class OpenAIResponsesCompactionArgs(TypedDict, total=False):
    """What a runner tells about the turn that has just been saved.

    ``store`` is whether the server kept the response; ``force`` compacts without asking the trigger.
    """

    response_id: str
    compaction_mode: OpenAIResponsesCompactionMode
    store: bool
    force: bool


@runtime_checkable
class OpenAIResponsesCompactionAwareSession(Session, Protocol):
    """A session that wants to be told when a turn has been saved."""

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Shorten the history if it is time to."""
        ...


def is_openai_responses_compaction_aware_session(
    session: Session | None,
) -> TypeGuard[OpenAIResponsesCompactionAwareSession]:
    return callable(getattr(session, "run_compaction", None))


class Compaction(msgspec.Struct, frozen=True):
    """One request to compact: how it was made and what it cost, in the API's own words."""

    id: str
    model: str
    mode: str
    usage: dict[str, Any]


class OpenAIResponsesCompactionSession(SessionABC):
    """Another session's history, replaced by its compacted form when it has grown.

    The replacement is one commit where the underlying session can do that (``splice_items`` or ``replace_items``
    with ``expected``), and the items it replaced stay readable there as an older generation. Any other session is
    cleared and filled again, and gets its items back if that fails or is cancelled.

    Tokens are counted in :meth:`take_compactions`: after each :meth:`run_compaction` a runner takes what is new
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
    ) -> None:
        refuse_conversations(underlying_session)
        self.session_id = checked_name("session id", session_id)
        self.underlying_session = underlying_session
        self.model = checked_model(model, client)
        self.compaction_mode = checked_mode(compaction_mode)
        self.should_trigger_compaction = should_trigger_compaction or is_long
        self._api = ApiClient(client, why="OpenAIResponsesCompactionSession")
        self._compacting = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._compactions: list[Compaction] = []
        self._due = False  # the trigger fired while calls were open
        self._response: tuple[str | None, bool | None] = (None, None)  # its id and whether the server stored it
        self._narrowest: int | None = None  # the smallest window anybody read since the last compaction

    @property
    def client(self) -> "AsyncOpenAI":
        """The client that was given, or one of this session's own."""
        return self._api.get()

    @property
    def session_settings(self) -> SessionSettings | None:
        return getattr(self.underlying_session, "session_settings", None)

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        self.underlying_session.session_settings = settings

    async def aclose(self) -> None:
        """Close the client if this session made it. The underlying session is its owner's to close."""
        await self._api.aclose()

    # --- the four methods -----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[Item]:
        items = await self.underlying_session.get_items(limit)
        window = limit if limit is not None else self._default_limit()
        if window is not None:
            self._narrowest = window if self._narrowest is None else min(window, self._narrowest)
        return items

    async def add_items(self, items: list[Item]) -> None:
        async with self._writing:
            self._forget_response()
            await self.underlying_session.add_items(items)

    async def pop_item(self) -> Item | None:
        async with self._writing:
            self._forget_response()
            return await self.underlying_session.pop_item()

    async def clear_session(self) -> None:
        async with self._writing:
            self._forget_response()
            self._due = False
            await self.underlying_session.clear_session()

    # --- compaction -----------------------------------------------------------------------------

    async def run_compaction(
        self, args: OpenAIResponsesCompactionArgs | None = None, *, wrapper: object | None = None
    ) -> None:
        """Compact the whole history if the trigger says so, or at once with ``force``.

        Puts it off while a tool call of the last response has no output, or the response chain has not seen the
        output yet; the next call that can do it then does it without asking the trigger again. What others add
        while the request is under way is kept behind the compacted items. A failure leaves the history as it was.

        A response chain only knows what its model was shown. If anybody read less than the whole history, which
        is what a limit does, the items themselves are sent, whatever the mode.

        ``wrapper`` is accepted for runners that pass their context; nothing is read from it or kept.
        """
        given = checked_args(args)
        async with self._compacting:
            before = await snapshot(self.underlying_session)
            response_id, store = self._response_of(given)
            asked = given.get("compaction_mode") or self.compaction_mode
            mode = resolved_mode(asked, response_id=response_id, store=store, whole=self._chain_is_whole(before))
            if not before.items:
                return
            if not (given.get("force") or self._due or await self._wanted(mode, response_id, before)):
                return
            covered = covered_by_response(before.items) if mode == "previous_response_id" else len(before.items)
            if waits_for_output(before.items) or has_output(before.items[covered:]):
                self._due = True
                return
            compacted = await self._compact(mode, response_id, before.items)
            async with self._writing:
                await replace_beginning(self.underlying_session, before, covered, compacted)
                self._forget_response()
                self._due, self._narrowest = False, None

    def take_compactions(self) -> list[Compaction]:
        """The compactions that were paid for since this was last called, also those that could not be stored."""
        taken, self._compactions = self._compactions, []
        return taken

    async def _compact(self, mode: str, response_id: str | None, items: list[Item]) -> list[Item]:
        source: dict[str, Any] = (
            {"previous_response_id": response_id} if mode == "previous_response_id" else {"input": paired(items)}
        )
        doing = f"compacting session {self.session_id!r}"
        with asking(doing, about=("response", response_id or "of this session"), changes=False):
            answer = await self.client.responses.compact(model=self.model, **source)
            usage = getattr(answer, "usage", None)
            compaction = Compaction(
                id=str(getattr(answer, "id", "")), model=self.model, mode=mode, usage=plain(usage) if usage else {}
            )
            compacted = [as_input(item) for item in getattr(answer, "output", None) or ()]
            self._compactions.append(compaction)
            if not compacted:
                raise ValueError("it has no items")
        return compacted

    async def _wanted(self, mode: str, response_id: str | None, before: Snapshot) -> bool:
        verdict: bool | Awaitable[bool] = self.should_trigger_compaction(
            {
                "response_id": response_id,
                "compaction_mode": mode,
                "compaction_candidate_items": candidates(before.items),
                "session_items": list(before.items),
            }
        )
        return bool(await verdict if inspect.isawaitable(verdict) else verdict)

    def _response_of(self, given: OpenAIResponsesCompactionArgs) -> tuple[str | None, bool | None]:
        """The last response: the one given, else the one given before if the history has not moved since."""
        known_id, known_store = self._response
        response_id = given.get("response_id")
        if response_id is not None and response_id != known_id:
            known_store = None
        self._response = (response_id or known_id, given.get("store", known_store))
        return self._response

    def _forget_response(self) -> None:
        self._response = (None, None)

    def _chain_is_whole(self, before: Snapshot) -> bool:
        """Whether the last response can know all that is stored, as far as that can be told from here."""
        windows = [window for window in (self._narrowest, self._default_limit()) if window is not None]
        seen = all(window >= len(before.items) for window in windows)
        return seen and before.complete and covered_by_response(before.items) > 0

    def _default_limit(self) -> int | None:
        return getattr(self.session_settings, "limit", None)


# --- decisions ----------------------------------------------------------------------------------


def candidates(items: Sequence[Item]) -> list[Item]:
    """The items that compaction makes shorter: all but user messages and what was compacted before."""
    return [item for item in items if item.get("role") != "user" and item.get("type") != "compaction"]


def is_long(context: dict[str, Any]) -> bool:
    """The trigger unless another is given."""
    return len(context["compaction_candidate_items"]) >= THRESHOLD


def resolved_mode(asked: str, *, response_id: str | None, store: bool | None, whole: bool) -> str:
    if asked == "previous_response_id" and response_id is None:
        raise InvalidInput("compaction by previous_response_id needs the response_id of the last response")
    if not whole or (asked == "auto" and (store is False or response_id is None)):
        return "input"
    return "previous_response_id" if asked == "auto" else asked


def covered_by_response(items: Sequence[Item]) -> int:
    """How many items from the beginning the last response knows: up to the last one that the model made."""
    for index in range(len(items), 0, -1):
        item = items[index - 1]
        if item.get("role", "assistant") == "assistant" and item.get("type") not in CALL_OF:
            return index
    return 0


def has_output(items: Sequence[Item]) -> bool:
    return any(item.get("type") in CALL_OF for item in items)


def waits_for_output(items: Sequence[Item]) -> bool:
    """Whether a call of the last response has no output yet. Older ones will not get theirs any more."""
    last_input = max((index for index, item in enumerate(items) if item.get("role") in INPUT_ROLES), default=-1)
    return any(entry.index > last_input and entry.problem is Problem.CALL_WITHOUT_OUTPUT for entry in unpaired(items))


INPUT_ROLES = ("user", "system", "developer")


# --- what is refused ----------------------------------------------------------------------------


def refuse_conversations(session: object) -> None:
    """A conversation on the server is compacted by the server; nothing may be replaced under its hands."""
    wrapped: object | None = session
    while wrapped is not None:
        # By name, because that of openai-agents is no better.
        if any(kind.__name__ == "OpenAIConversationsSession" for kind in type(wrapped).__mro__):
            raise InvalidInput("an OpenAIConversationsSession cannot be compacted: the server keeps its history")
        wrapped = getattr(wrapped, "underlying_session", None)


def checked_model(model: object, client: object) -> str:
    if not isinstance(model, str):
        raise InvalidInput(f"the model must be a string, not {type(model).__name__}")
    if not _MODEL.match(model) and "Azure" not in type(client).__name__:  # Azure calls models what its users like
        raise InvalidInput(f"responses.compact is for OpenAI's models; {model!r} is not one")
    return model


def checked_mode(mode: object) -> OpenAIResponsesCompactionMode:
    if mode not in _MODES:
        raise InvalidInput(f"the compaction mode must be one of {', '.join(_MODES)}, not {mode!r}")
    return mode  # type: ignore[return-value]


def checked_args(args: OpenAIResponsesCompactionArgs | None) -> OpenAIResponsesCompactionArgs:
    given: OpenAIResponsesCompactionArgs = args or {}
    unknown = sorted(set(given) - set(OpenAIResponsesCompactionArgs.__annotations__))
    if unknown:
        raise InvalidInput(f"unknown compaction arguments: {', '.join(unknown)}")
    if given.get("compaction_mode") is not None:
        checked_mode(given["compaction_mode"])
    response_id = given.get("response_id")
    if response_id is not None and not isinstance(response_id, str):
        raise InvalidInput(f"the response id must be a string, not {type(response_id).__name__}")
    return given
