"""A paused run: inspect it, decide about its calls, save it, load it."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Generic, Literal, overload

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar, Unpack

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UncertainCall, UserError
from standfast.agents.graph import ROOT, AgentGraph
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.history.session import Session, use_run_context
from standfast.runs import decisions, saved_workspace
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.core.context import (
    ContextDeserializer,
    ContextOverride,
    ContextSerializer,
    copy_run_context,
    load_run_context,
    save_context,
)
from standfast.runs.core.conversion import export_trace, from_usage_record, to_usage_record
from standfast.runs.core.openai_agents.saved_run import is_openai_agents_run, read_openai_agents_run
from standfast.runs.core.openai_agents.snapshot import write_openai_agents_run
from standfast.runs.core.serialization import decode_run, encode_run, list_agent_paths, parse_text
from standfast.runs.core.state import State, check_session, make_conversation
from standfast.runs.core.steps import InputStaged
from standfast.runs.core.transitions import apply_outcome, is_waiting
from standfast.runs.decisions import UserDecision, encode_arguments, find_waiting_call
from standfast.runs.items import ToolApprovalItem
from standfast.runs.saved_workspace import SaveOptions
from standfast.runs.session_io import as_items, list_stored_items, read_session_input, remove_own_items, validate_input
from standfast.workspaces.run_workspace import RunWorkspace
from standfast.workspaces.versions import WorkspaceRef

TContext = TypeVar("TContext", default=Any)
TAgent = TypeVar("TAgent", default=Any)


class RunState(Generic[TContext, TAgent]):
    """A paused run that can be saved and resumed, in this process or in another one with the same agents.

    It remembers what was done with it: if resuming fails or is cancelled, resuming it again continues behind the calls
    that were made. A call that was started and did not return may have happened, and needs a decision. What
    ``to_json`` returns is a copy: nothing that happens to the run later changes it.
    """

    def __init__(
        self,
        context: RunContextWrapper[TContext],
        original_input: str | list[Any],
        starting_agent: TAgent,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        *,
        conversation_id: str | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
    ) -> None:
        self.context = context
        self.data = State(
            run_id=new_id("run"),
            input=validate_input(original_input),
            max_turns=max_turns,
            conversation=make_conversation(conversation_id, previous_response_id, auto_previous_response_id),
        )
        self.agent = starting_agent
        self.graph = AgentGraph(starting_agent)  # type: ignore[arg-type]
        self._active_run: ActiveRun | None = None
        self._driver: ActiveRun | None = None
        self._workspace = RunWorkspace(self.data.run_id)

    @classmethod
    def from_run(cls, run: ActiveRun) -> "RunState[Any, Any]":
        """Return the state of a run, independent of how that run continues."""
        data = run.capture_state()
        workspace = saved_workspace.continue_workspace(run, data)
        state = cls._from_parts(data, run.graph, copy_run_context(run.context), workspace)
        state._active_run = run
        return state

    @classmethod
    def _from_parts(
        cls, data: State, graph: AgentGraph, context: RunContextWrapper[Any], workspace: RunWorkspace
    ) -> "RunState[Any, Any]":
        state = cls.__new__(cls)
        state.data, state.graph, state.agent, state.context = data, graph, graph.root, context  # type: ignore[assignment]
        state._active_run, state._driver, state._workspace = None, None, workspace
        return state

    def bind(self, agent: Agent[Any]) -> None:
        """Use ``agent`` and the agents that it reaches from now on; they must be equal to those of the run.

        Agents are equal if they have the same path and signature, so they may be built anew for every request. Raises
        :class:`AgentMissing` or :class:`AgentChanged` otherwise.
        """
        if agent is self.graph.root:
            return
        graph = AgentGraph(agent)
        for path in dict.fromkeys((ROOT, *list_agent_paths(self.data))):
            known = self.graph.find(path)
            if known is not None:  # otherwise no declared handoff leads to it
                graph.resolve(self.graph.get_ref(known))
        # The objects of the former agents, such as tools with an open connection, are no longer used.
        self.graph, self.agent, self._active_run = graph, agent, None  # type: ignore[assignment]

    # --- progress ---------------------------------------------------------------------------------

    def claim(self, run: ActiveRun) -> None:
        """Let a run continue from this state. Raises :class:`UserError` if another one does so, or did meanwhile."""
        if self._driver is not None or run.origin_data is not self.data:
            raise UserError(
                f"the run {self.run_id!r} is continued from this state already: wait for that, or load the state again"
            )
        self._driver = run

    def release(self, run: ActiveRun) -> None:
        """Take over what the run has done, so that nothing is done again when this state is resumed once more."""
        self._driver = None
        self.data = run.origin_data = run.capture_state()
        self.context.approvals = run.context.approvals.copy()
        self.context.usage = from_usage_record(self.data.usage)
        self._active_run, self._workspace = run, saved_workspace.continue_workspace(run, self.data)

    # --- inspection -------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.data.run_id

    @property
    def max_turns(self) -> int | None:
        """The limit of turns. Raise it to resume a run that has reached it."""
        return self.data.max_turns

    @max_turns.setter
    def max_turns(self, value: int | None) -> None:
        self.data = replace(self.data, max_turns=value)

    @property
    def current_agent(self) -> Agent[Any]:
        """The agent that continues the run."""
        return self.to_active_run().current_agent

    @property
    def workspace(self) -> WorkspaceRef | None:
        """Where the variables and files of the run's Python are, if they are in a store: resuming brings them back."""
        return self.data.workspace

    @property
    def workspace_problem(self) -> str | None:
        """Why the variables and files of a loaded run are not available, and what to do; ``None`` if they are."""
        return self._workspace.problem

    def get_interruptions(self) -> list[ToolApprovalItem]:
        """Return the calls that wait for approval, those of nested agents included."""
        return self.to_active_run().get_interruptions() if is_waiting(self.data) else []

    def to_active_run(self, config: RunConfig | None = None) -> ActiveRun:
        """Return a run that is ready for the driver.

        It shares only the program's context object with this state.
        """
        run = ActiveRun(
            self.data,
            graph=self.graph,
            context=copy_run_context(self.context),
            config=config or RunConfig(),
            workspace=self._workspace.continue_from(self.data.workspace),
        )
        if self._active_run is not None:
            run.copy_caches(self._active_run)
        return run

    # --- decisions --------------------------------------------------------------------------------

    def approve(self, approval_item: ToolApprovalItem, always_approve: bool = False, *, arguments: Any = None) -> None:
        """Approve the call; it is made when the run is resumed.

        ``arguments`` (JSON text or a dict) replace the model's. With ``always_approve`` every further call of that tool
        by that agent is approved for this run. A call that may have happened already raises :class:`UncertainCall`:
        see :meth:`call_again` and :meth:`mark_done`.
        """
        call = find_waiting_call(self.data, approval_item)
        if call.uncertain:
            remedy = "find out, then use mark_done(item, output), reject(item), or call_again(item)"
            raise UncertainCall(str(call.tool), call.id, remedy=remedy)
        self._decide(approval_item, UserDecision(True, always_approve, arguments=encode_arguments(arguments)))

    def call_again(self, approval_item: ToolApprovalItem, *, arguments: Any = None) -> None:
        """Have an uncertain call made again, although it may have happened already."""
        decisions.require_uncertain(self.data, approval_item)
        self._decide(approval_item, UserDecision(True, arguments=encode_arguments(arguments)))

    def mark_done(self, approval_item: ToolApprovalItem, output: str) -> None:
        """State that an uncertain call did happen; the model receives ``output``. The call is not made again."""
        decisions.require_uncertain(self.data, approval_item)
        self._decide(approval_item, UserDecision(False, message=output))

    def reject(
        self, approval_item: ToolApprovalItem, always_reject: bool = False, *, rejection_message: str | None = None
    ) -> None:
        """Reject the call; the model receives ``rejection_message`` or a default text as its output."""
        self._decide(approval_item, UserDecision(False, always_reject, message=rejection_message))

    def _decide(self, item: ToolApprovalItem, decision: UserDecision) -> None:
        if decision.arguments is not None:
            decisions.check_edited_arguments(self.graph, item, decision.arguments)
        if find_waiting_call(self.data, item).uncertain or item.route:
            self.data = decisions.apply_decision(self.data, item, decision)
        else:
            decision.apply_to(self.context, item)

    # --- input and settings -----------------------------------------------------------------------

    @property
    def pending_input(self) -> list[Item]:
        """Input that was added and not yet passed to the model."""
        return deepcopy(list(self.data.pending_input))

    def add_input(self, input: str | list[Item]) -> None:
        """Add input for the next model call of the resumed run; raise :class:`UserError` if there may be none."""
        if self.data.ended:
            raise UserError("this run has ended and takes no more input: start a new run")
        if self.data.answer is not None or (
            self.data.calls and self.current_agent.tool_use_behavior != "run_llm_again"
        ):
            raise UserError(
                "this run may end without another model call, and the input would be lost: the output of a tool may "
                "be its final output. Resume it first, and pass the input to the next run"
            )
        self.data = apply_outcome(self.data, InputStaged(tuple(as_items(validate_input(input)))))

    def clear_pending_input(self) -> None:
        """Drop input that no turn has taken yet."""
        self.data = replace(self.data, pending_input=())

    def get_tool_use_tracker_snapshot(self) -> dict[str, list[str]]:
        """Return the names of the tools that each agent has used so far, by the agent's path."""
        return {path: list(names) for path, names in self.data.tools_used.items()}

    def set_tool_use_tracker_snapshot(self, snapshot: Mapping[str, Sequence[str]] | None) -> None:
        """Replace the record of which agents have used which tools."""
        used = {path: tuple(names) for path, names in (snapshot or {}).items()}
        self.data = replace(self.data, tools_used=used)

    def set_reasoning_item_id_policy(self, policy: Literal["preserve", "omit"] | None) -> None:
        """Say whether the ids of reasoning items are sent to the model."""
        self.data = replace(self.data, reasoning_item_id_policy=policy)

    def set_trace(self, trace: Any) -> None:
        """Set the trace that the run belongs to: its exported form, without an API key."""
        self.data = replace(self.data, trace=export_trace(trace))

    async def rewind(self, session: Session) -> bool:
        """Remove exactly what this run has stored in the session, so that it can be run again from its input.

        Returns ``False`` and removes nothing when the session ends with other items by now.
        """
        with use_run_context(self.context):
            return await remove_own_items(session, list_stored_items(self.data))

    # --- serialization ----------------------------------------------------------------------------

    def _capture_data(self) -> State:
        return replace(
            self.data,
            approvals=tuple(self.context.approvals.list_decisions()),
            usage=to_usage_record(self.context.usage),
        )

    @overload
    def to_json(self, *, embed_workspace: Literal[False] = False, **options: Unpack[SaveOptions]) -> dict[str, Any]: ...

    @overload
    def to_json(
        self, *, embed_workspace: Literal[True], **options: Unpack[SaveOptions]
    ) -> Awaitable[dict[str, Any]]: ...

    def to_json(
        self,
        *,
        context_serializer: ContextSerializer | None = None,
        strict_context: bool = False,
        include_tracing_api_key: bool = False,
        embed_workspace: bool = False,
        max_workspace_mb: int = saved_workspace.DEFAULT_EMBEDDED_MB,
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return the run as JSON values. Of a session's history it contains only what this run added.

        A run never contains an API key, so ``include_tracing_api_key`` has no effect.

        With ``embed_workspace=True`` the result is to be awaited, and has the variables and files of the run's Python
        in it, so that no store is needed to resume it. They are read from the store, and encrypted if the session is.
        More than ``max_workspace_mb`` of content, after compression, raises :class:`Unsupported`. A run that was loaded
        with an embedded workspace keeps it until it has used it.
        """
        context = save_context(self.context.context, serializer=context_serializer, strict=strict_context)
        data = self._capture_data()
        if embed_workspace:
            return saved_workspace.encode_portable(data, self.graph, context, self._workspace, max_mb=max_workspace_mb)
        return encode_run(data, self.graph, context, self._workspace.get_embedded(data.workspace))

    @overload
    def to_string(self, *, embed_workspace: Literal[False] = False, **options: Unpack[SaveOptions]) -> str: ...

    @overload
    def to_string(self, *, embed_workspace: Literal[True], **options: Unpack[SaveOptions]) -> Awaitable[str]: ...

    def to_string(
        self,
        *,
        context_serializer: ContextSerializer | None = None,
        strict_context: bool = False,
        include_tracing_api_key: bool = False,
        embed_workspace: bool = False,
        max_workspace_mb: int = saved_workspace.DEFAULT_EMBEDDED_MB,
    ) -> str | Awaitable[str]:
        """Return the run as JSON text, see :meth:`to_json`."""
        options = SaveOptions(context_serializer=context_serializer, strict_context=strict_context)
        if embed_workspace:
            options["max_workspace_mb"] = max_workspace_mb
            return saved_workspace.encode_text(self.to_json(embed_workspace=True, **options))
        return msgspec.json.encode(self.to_json(**options)).decode()

    async def to_openai_agents_json(
        self, *, session: Session | None = None, context_serializer: ContextSerializer | None = None
    ) -> dict[str, Any]:
        """Return the run as JSON values that openai-agents 0.18.1 or newer can resume.

        A run in a session needs the session, because openai-agents saves the history with the run. What openai-agents
        cannot represent, such as edited arguments and uncertain calls, raises :class:`NotRepresentable`. A decision
        about every call of a tool is written for the calls that wait now.
        """
        data = self._capture_data()
        check_session(data, session)
        with use_run_context(self.context):
            history = await read_session_input(self.to_active_run(), session)
        context = save_context(self.context.context, serializer=context_serializer, strict=False)
        return write_openai_agents_run(data, self.graph, context, history)

    @staticmethod
    async def from_json(
        initial_agent: Agent[Any],
        state_json: dict[str, Any],
        *,
        context_override: ContextOverride | None = None,
        context_deserializer: ContextDeserializer | None = None,
        strict_context: bool = False,
        tolerate: Collection[str] = (),
        encryption_key: str | Sequence[str] | None = None,
    ) -> "RunState[Any, Agent[Any]]":
        """Load a saved run and bind it to the agents that ``initial_agent`` reaches.

        Raises :class:`AgentMissing` or :class:`AgentChanged` when they are not the agents it was saved with; changes
        of the parts named in ``tolerate`` (such as ``"instructions"``) are accepted.

        Resuming the run brings back the variables and files of its Python. If neither a store of the agents' Python
        tools nor the run itself has them, a warning and :attr:`workspace_problem` say what is missing and what to do;
        the run can be resumed all the same, and the model gets a note. An embedded workspace that is foreign, cut,
        altered, too new or of another run raises :class:`WorkspaceRefused`; with ``"workspace"`` in ``tolerate`` the
        rest of the run is loaded without it. ``encryption_key`` opens one that is encrypted.

        A run that openai-agents saved (schema 1.0 to 1.21) is loaded, too. Its agents are found by their names, and
        what cannot be carried on raises :class:`UnreadableState`.
        """
        graph = AgentGraph(initial_agent)
        is_foreign = is_openai_agents_run(state_json)
        saved = (read_openai_agents_run if is_foreign else partial(decode_run, tolerate=tolerate))(state_json, graph)
        workspace = await saved_workspace.load_workspace(saved, graph, encryption_key, tolerate)
        data = replace(saved.run, workspace=workspace.reference)
        context = load_run_context(
            data, saved.context, override=context_override, deserializer=context_deserializer, strict=strict_context
        )
        return RunState._from_parts(data, graph, context, workspace)

    @staticmethod
    async def from_string(
        initial_agent: Agent[Any],
        state_string: str,
        *,
        context_override: ContextOverride | None = None,
        context_deserializer: ContextDeserializer | None = None,
        strict_context: bool = False,
        tolerate: Collection[str] = (),
        encryption_key: str | Sequence[str] | None = None,
    ) -> "RunState[Any, Agent[Any]]":
        """Do the same as :meth:`from_json`, for the text of :meth:`to_string`."""
        return await RunState.from_json(
            initial_agent,
            parse_text(state_string),
            context_override=context_override,
            context_deserializer=context_deserializer,
            strict_context=strict_context,
            tolerate=tolerate,
            encryption_key=encryption_key,
        )
