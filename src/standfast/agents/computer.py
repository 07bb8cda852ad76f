"""Computer use: the model asks for clicks, keys and screenshots, which the program's computer performs."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.local_tools import make_local_function
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.approvals import Approvals
    from standfast.agents.context import RunContextWrapper, ToolContext

log = get_logger("standfast.tools")

Environment: TypeAlias = Literal["mac", "windows", "ubuntu", "browser"]
Button: TypeAlias = Literal["left", "right", "wheel", "back", "forward"]


class Computer(ABC):
    """A computer or browser that the model operates. ``screenshot`` returns a PNG image in Base64."""

    @property
    def environment(self) -> Environment | None:
        """The kind of computer, None if the model need not know it."""
        return None

    @property
    def dimensions(self) -> tuple[int, int] | None:
        """Width and height of the screen in pixels, None if the model need not know them."""
        return None

    @abstractmethod
    def screenshot(self) -> str:
        """Return a picture of the screen as base64."""

    @abstractmethod
    def click(self, x: int, y: int, button: Button) -> None:
        """Press and release a mouse button at a position."""

    @abstractmethod
    def double_click(self, x: int, y: int) -> None:
        """Press the left mouse button twice at a position."""

    @abstractmethod
    def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None:
        """Scroll by so many pixels at a position."""

    @abstractmethod
    def type(self, text: str) -> None:
        """Type the text."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the computer has reacted."""

    @abstractmethod
    def move(self, x: int, y: int) -> None:
        """Move the pointer to a position."""

    @abstractmethod
    def keypress(self, keys: list[str]) -> None:
        """Press the keys together."""

    @abstractmethod
    def drag(self, path: list[tuple[int, int]]) -> None:
        """Move the pointer along the positions with the left mouse button pressed."""


class AsyncComputer(ABC):
    """Like :class:`Computer`, with async methods."""

    @property
    def environment(self) -> Environment | None:
        """The kind of computer, None if the model need not know it."""
        return None

    @property
    def dimensions(self) -> tuple[int, int] | None:
        """Width and height of the screen in pixels, None if the model need not know them."""
        return None

    @abstractmethod
    async def screenshot(self) -> str:
        """Return a picture of the screen as base64."""

    @abstractmethod
    async def click(self, x: int, y: int, button: Button) -> None:
        """Press and release a mouse button at a position."""

    @abstractmethod
    async def double_click(self, x: int, y: int) -> None:
        """Press the left mouse button twice at a position."""

    @abstractmethod
    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None:
        """Scroll by so many pixels at a position."""

    @abstractmethod
    async def type(self, text: str) -> None:
        """Type the text."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the computer has reacted."""

    @abstractmethod
    async def move(self, x: int, y: int) -> None:
        """Move the pointer to a position."""

    @abstractmethod
    async def keypress(self, keys: list[str]) -> None:
        """Press the keys together."""

    @abstractmethod
    async def drag(self, path: list[tuple[int, int]]) -> None:
        """Move the pointer along the positions with the left mouse button pressed."""


ComputerLike: TypeAlias = Computer | AsyncComputer
ComputerT = TypeVar("ComputerT", bound=ComputerLike, default=Any)
ComputerT_co = TypeVar("ComputerT_co", bound=ComputerLike, covariant=True)
ComputerT_contra = TypeVar("ComputerT_contra", bound=ComputerLike, contravariant=True)


class ComputerCreate(Protocol[ComputerT_co]):
    """Makes the computer of a run."""

    def __call__(self, *, run_context: "RunContextWrapper[Any]") -> MaybeAwaitable[ComputerT_co]: ...


class ComputerDispose(Protocol[ComputerT_contra]):
    """Releases the computer of a run."""

    def __call__(
        self, *, run_context: "RunContextWrapper[Any]", computer: ComputerT_contra
    ) -> MaybeAwaitable[None]: ...


@dataclass
class ComputerProvider(Generic[ComputerT]):
    """Makes a computer for each run, and releases it when the run ends or waits."""

    create: ComputerCreate[ComputerT]
    dispose: ComputerDispose[ComputerT] | None = None


@dataclass
class ComputerToolSafetyCheckData:
    """The argument of ``on_safety_check``: a check that the provider wants acknowledged."""

    ctx_wrapper: "RunContextWrapper[Any]"
    agent: Any
    tool_call: Any
    safety_check: Any


@dataclass
class ComputerToolCustomDataContext:
    """The argument of the ``custom_data_extractor`` of a computer tool."""

    run_context: "RunContextWrapper[Any]"
    tool: "ComputerTool[Any]"
    tool_call: Any
    output: str
    raw_item: Any


ComputerConfig: TypeAlias = ComputerLike | ComputerCreate[Any] | ComputerProvider[Any]
ComputerToolCustomDataExtractor: TypeAlias = Callable[
    [ComputerToolCustomDataContext], MaybeAwaitable[Mapping[str, Any] | None]
]


@dataclass(eq=False)
class ComputerTool(LocalTool, Generic[ComputerT]):
    """Lets the model operate ``computer``: one for all runs, or what makes one for each run.

    ``on_safety_check`` decides about the checks of the provider; a check that it does not accept ends the run.
    """

    computer: ComputerT | ComputerCreate[ComputerT] | ComputerProvider[ComputerT]
    on_safety_check: Callable[[ComputerToolSafetyCheckData], MaybeAwaitable[bool]] | None = None
    custom_data_extractor: ComputerToolCustomDataExtractor | None = field(default=None, kw_only=True)

    call_type: ClassVar[str] = "computer_call"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of this kind of tool."""
        return "computer_use_preview"

    @property
    def trace_name(self) -> str:
        """The name of the tool in traces."""
        return "computer"

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        """Return the declaration; the older ``computer-use-preview`` models need environment and dimensions."""
        if model is None or not model.startswith("computer-use-preview"):
            return {"type": "computer"}
        computer: Any = self.computer
        if not isinstance(computer, Computer | AsyncComputer) or not (computer.environment and computer.dimensions):
            raise UserError("the computer needs environment and dimensions for a computer-use-preview model")
        width, height = computer.dimensions
        return {
            "type": "computer_use_preview",
            "environment": computer.environment,
            "display_width": width,
            "display_height": height,
        }

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(self, self._invoke)

    async def bind(self, run_context: "RunContextWrapper[Any]") -> "ComputerTool[Any]":
        if isinstance(self.computer, Computer | AsyncComputer):
            return self
        return replace(self, computer=await resolve_computer(tool=self, run_context=run_context))

    async def release(self, run_context: "RunContextWrapper[Any]") -> None:
        await dispose_resolved_computers(run_context=run_context)

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        call = json.loads(arguments)
        checks = call.get("pending_safety_checks") or []
        acknowledged = await self._acknowledge(context, checks)
        computer = await resolve_computer(tool=self, run_context=context)
        for action in call.get("actions") or [call.get("action") or {"type": "screenshot"}]:
            await _perform(computer, action)
        output = f"data:image/png;base64,{await maybe_await(computer.screenshot())}"
        item = {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": output},
            "acknowledged_safety_checks": acknowledged,
        }
        if self.custom_data_extractor is None:
            return LocalToolResult(output, item)
        raw_item = {**item, "call_id": context.tool_call_id}
        data = ComputerToolCustomDataContext(context, self, context.tool_call, output, raw_item)
        return LocalToolResult(output, item, await maybe_await(self.custom_data_extractor(data)))

    async def _acknowledge(self, context: "ToolContext[Any]", checks: list[Any]) -> list[Any] | None:
        if not checks:
            return None
        if self.on_safety_check is None:
            log.warning("a computer call has safety checks, and the tool has no on_safety_check: they stay open")
            return None
        raw_checks = getattr(context.tool_call, "pending_safety_checks", None) or checks
        for check in raw_checks:
            data = ComputerToolSafetyCheckData(context, context.agent, context.tool_call, check)
            if not await maybe_await(self.on_safety_check(data)):
                raise UserError("Computer tool safety check was not acknowledged")
        return checks


async def _perform(computer: ComputerLike, action: Mapping[str, Any]) -> None:
    """Perform one action of the model; ``screenshot`` is made after all of them anyway."""
    kind = action.get("type")
    names: dict[str, tuple[str, ...]] = {
        "click": ("x", "y", "button"),
        "double_click": ("x", "y"),
        "scroll": ("x", "y", "scroll_x", "scroll_y"),
        "type": ("text",),
        "wait": (),
        "move": ("x", "y"),
        "keypress": ("keys",),
    }
    if kind == "screenshot":
        return
    if kind == "drag":
        await maybe_await(computer.drag([(point["x"], point["y"]) for point in action["path"]]))
    elif kind in names:
        await maybe_await(getattr(computer, kind)(*(action[name] for name in names[kind])))
    else:
        raise ModelBehaviorError(f"a computer cannot perform the action {kind!r}")


@dataclass
class _RunComputers:
    """The computers that were made for a run, by the id of their tool; all contexts of a run share its approvals."""

    approvals: "Approvals"
    made: dict[int, tuple[ComputerTool[Any], Any]] = field(default_factory=dict)


_computers_by_run: dict[int, _RunComputers] = {}


async def resolve_computer(*, tool: ComputerTool[Any], run_context: "RunContextWrapper[Any]") -> Any:
    """Return the tool's computer for this run. It is made at the first call, and kept until it is disposed of."""
    computer = tool.computer
    if isinstance(computer, Computer | AsyncComputer):
        return computer
    approvals = run_context.approvals
    made = _computers_by_run.setdefault(id(approvals), _RunComputers(approvals)).made
    if id(tool) not in made:
        create: Any = computer.create if isinstance(computer, ComputerProvider) else computer
        made[id(tool)] = (tool, await maybe_await(create(run_context=run_context)))
    return made[id(tool)][1]


async def dispose_resolved_computers(*, run_context: "RunContextWrapper[Any]") -> None:
    """Release the computers that were made for this run."""
    computers = _computers_by_run.pop(id(run_context.approvals), None)
    for tool, computer in () if computers is None else computers.made.values():
        if isinstance(tool.computer, ComputerProvider) and tool.computer.dispose is not None:
            await maybe_await(tool.computer.dispose(run_context=run_context, computer=computer))
