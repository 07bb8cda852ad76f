"""The Python tool: a persistent, sandboxed Python interpreter for each conversation."""

from typing import Any

from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.function_tool import function_tool
from standfast.agents.tool_outputs import ToolOutputImage, ToolOutputText
from standfast.agents.tools import FunctionTool, OnUncertain, default_tool_error_function
from standfast.agents.types import NeedsApproval
from standfast.base.errors import StandfastError, Unsupported
from standfast.base.ids import current_conversation
from standfast.workers.errors import PrepareFailed
from standfast.workers.pool import SessionPool
from standfast.workers.python_sessions import CarriedOver, PythonCallResult, PythonSessions
from standfast.workers.results import extract_images

_MAX_IMAGES = 10


def python_tool(
    pool: SessionPool | PythonSessions,
    *,
    name: str = "run_python",
    description: str | None = None,
    timeout: float = 30.0,
    needs_approval: NeedsApproval = False,
    on_uncertain: OnUncertain | None = None,
    prepare: str = "",
) -> FunctionTool:
    """Return a tool that runs Python code in a session that lasts as long as the conversation.

    ``description`` tells the model what the session is for, for example which files and packages it has. ``prepare`` is
    Python code that runs once in each new interpreter before its first call: imports, functions and settings that the
    model shall find. If it raises an exception or takes longer than ``timeout``, the run fails.

    Calls of one conversation share variables and files; different conversations share nothing. Nested agents use
    the session of the outer run. The model receives printed output, the value of the last expression, images and
    tracebacks, and a notice when its variables are lost: after a crash, after a timeout that required killing the
    worker, or when the pool reclaimed the session.

    In a durable run, variables and files are kept in the store of the runtime. Whatever is killed, the next call finds
    them as the last finished call left them, in any process; if something could not be restored, its output says what.
    A call that was under way is made again, as ``on_uncertain="retry"`` says. That is the default where the sandbox has
    no network: such a call has changed nothing but the workspace. Otherwise the default is ``ask``. With a
    :class:`PythonSessions` that has a store, so are those of other runs, and a :class:`RunState` refers to them.

    Tools with the same pool share its sessions, so an agent may be created for every request. To keep a
    tool's sessions separate, pass it its own :class:`PythonSessions`.
    """
    sessions = pool if isinstance(pool, PythonSessions) else PythonSessions.for_pool(pool)

    async def run_python(context: ToolContext[Any], code: str) -> str | list[ToolOutputText | ToolOutputImage]:
        """Run Python code in a persistent, sandboxed session. Returns what it printed and its last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        key = context.conversation_key or current_conversation.get()
        result = await sessions.run(
            code,
            key=key,
            timeout=timeout,
            recorded_call=context.recorded_call,
            origin=context.idempotency_key,
            run=context.workspace,
            prepare=prepare,
        )
        nothing_lost = result.is_first_call and not _has_run_before(context)
        return _format_result(result, carried_over="variables" if nothing_lost else result.carried_over)

    if on_uncertain is None:
        policy = sessions.pool.config.session.sandbox
        on_uncertain = "retry" if policy.network == "none" and policy.require != "plain" else "ask"
    tool = function_tool(
        run_python,
        name_override=name,
        description_override=description,
        needs_approval=needs_approval,
        on_uncertain=on_uncertain,
        failure_error_function=_explain_failure,
    )
    tool.python_sessions = sessions
    return tool


def _explain_failure(context: RunContextWrapper[Any], error: Exception) -> str:
    """Return the message for the model. What happened to its session is for the model; other errors are not.

    Errors in what the program itself requested are raised to the program.
    """
    if isinstance(error, (Unsupported, PrepareFailed)):
        raise error
    text = default_tool_error_function(context, error)
    return f"{text} Error: {error}" if isinstance(error, StandfastError) and str(error) not in text else text


def _format_result(
    call_result: PythonCallResult, *, carried_over: CarriedOver
) -> str | list[ToolOutputText | ToolOutputImage]:
    text, images = call_result.as_text(carried_over=carried_over), extract_images(call_result.result)
    if not images:
        return text
    if len(images) > _MAX_IMAGES:
        text += f"\n[{len(images) - _MAX_IMAGES} of {len(images)} pictures left out]"
    parts = [ToolOutputImage(image_url=f"data:{mime};base64,{data}") for mime, data in images[:_MAX_IMAGES]]
    return [ToolOutputText(text=text), *parts]


def _has_run_before(context: ToolContext[Any]) -> bool:
    """Return whether the model's input has calls of this tool; True if the input is unknown, as in a resumed run."""
    items = context.model_input
    return not items or any(
        item.get("type") == "function_call" and item.get("name") == context.tool_name for item in items
    )
