"""Python as a tool: every conversation has a persistent, sandboxed interpreter of its own."""

from typing import Any

from standfast.agents.context import ToolContext
from standfast.agents.function_tool import function_tool
from standfast.agents.tools import FunctionTool, ToolOutputImage, ToolOutputText
from standfast.agents.types import NeedsApproval
from standfast.base.context import current_conversation
from standfast.workers.formatting import as_text, extract_images
from standfast.workers.pool import SessionPool
from standfast.workers.python_sessions import CarriedOver, PythonCallResult, PythonSessions

_MAX_IMAGES = 10


def python_tool(
    pool: SessionPool | PythonSessions,
    *,
    name: str = "run_python",
    timeout: float = 30.0,
    needs_approval: NeedsApproval = False,
) -> FunctionTool:
    """A tool that runs Python, in a session that lasts as long as the conversation.

    Calls of one conversation see each other's variables and files, those of different conversations never; nested
    agents work in the session of the run around them. The model is given what was printed, the value of the last
    expression, pictures, tracebacks, and is told when its variables are gone: after a crash, a timeout that only
    killing could end, or when the pool needed the place.

    Tools over one pool share its sessions, so that an agent may be made anew for every request. Give
    :class:`PythonSessions` of its own to a tool that shall not.
    """
    sessions = pool if isinstance(pool, PythonSessions) else PythonSessions.for_pool(pool)

    async def run_python(context: ToolContext[Any], code: str) -> str | list[ToolOutputText | ToolOutputImage]:
        """Run Python code in a persistent, sandboxed session. Returns what it printed and its last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        ran = await sessions.run(code, key=context.conversation_key or current_conversation.get(), timeout=timeout)
        return _format_result(
            ran, carried_over="variables" if ran.is_first_call and not _has_run_before(context) else ran.carried_over
        )

    return function_tool(run_python, name_override=name, needs_approval=needs_approval)


def _format_result(
    call_result: PythonCallResult, *, carried_over: CarriedOver
) -> str | list[ToolOutputText | ToolOutputImage]:
    text, shown = as_text(call_result.result, carried_over=carried_over), extract_images(call_result.result)
    if not shown:
        return text
    if len(shown) > _MAX_IMAGES:
        text += f"\n[{len(shown) - _MAX_IMAGES} of {len(shown)} pictures left out]"
    images = [ToolOutputImage(image_url=f"data:{mime};base64,{data}") for mime, data in shown[:_MAX_IMAGES]]
    return [ToolOutputText(text=text), *images]


def _has_run_before(context: ToolContext[Any]) -> bool:
    """Whether the model has seen calls of this tool; also when this run was resumed and nobody knows."""
    seen = context.turn_input
    return not seen or any(
        item.get("type") == "function_call" and item.get("name") == context.tool_name for item in seen
    )
