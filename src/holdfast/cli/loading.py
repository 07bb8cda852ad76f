"""From the name of an agent on the command line to the agent."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from holdfast.agents.agent import Agent
from holdfast.base.errors import HoldfastError, InvalidInput, NotFound
from holdfast.cli.failing import first_line
from holdfast.models.contract import Model

AgentName = Annotated[
    str | None,
    typer.Argument(
        metavar="[AGENT]",
        envvar="HOLDFAST_AGENT",
        help="module:attribute, a file, or file.py:attribute. Without one, a plain assistant.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A model's name, or `local` for the embedded one. Without a key it is `local`."),
]


def chosen_agent(name: str | None, model: str | None = None) -> Agent[Any]:
    """The agent of that name, with another model if one is named; a plain assistant without a name."""
    agent = load_agent(name) if name else Agent("assistant", instructions="Be helpful and brief.")
    told: str | Model | None = model
    if model is None and agent.model is None and not os.environ.get("OPENAI_API_KEY"):
        told = "local"
    if told == "local":
        from holdfast.models.local import LocalModel

        told = LocalModel()
    return agent if told is None else agent.clone(model=told)


def load_agent(name: str) -> Agent[Any]:
    """The one agent that ``module:attribute``, ``file.py:attribute`` or ``file.py`` means."""
    where, _, attribute = name.partition(":")
    module = load_file(Path(where)) if where.endswith(".py") else load_module(where)
    found = getattr(module, attribute, None) if attribute else None
    if attribute and found is None:
        raise NotFound("agent", f"{name} (it has {', '.join(sorted(agents_in(vars(module))) or 'no agents')})")
    if isinstance(found, Agent):
        return found
    if attribute:
        raise InvalidInput(f"{name} is no Agent but {type(found).__name__}")
    return only_agent(where, agents_in(vars(module)))


def agents_in(names: dict[str, Any]) -> dict[str, Agent[Any]]:
    return {name: value for name, value in names.items() if isinstance(value, Agent)}


def only_agent(where: str, found: dict[str, Agent[Any]]) -> Agent[Any]:
    if "agent" in found:
        return found["agent"]
    if len(distinct(found.values())) == 1:
        return next(iter(found.values()))
    if not found:
        raise NotFound("agent", where)
    raise InvalidInput(f"{where} has several agents: name one, {where}:{next(iter(found))}")


def distinct(agents: Iterable[Agent[Any]]) -> set[int]:
    return {id(agent) for agent in agents}


def load_module(name: str) -> ModuleType:
    if not name:
        raise InvalidInput("an agent is named module:attribute, file.py:attribute or file.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return imported(name, name)


def load_file(path: Path) -> ModuleType:
    """The file as a module: of its package, if it is in one, so that its relative imports work."""
    if not path.is_file():
        raise NotFound("file", str(path))
    name, folder = path.stem, path.parent.resolve()
    while (folder / "__init__.py").exists():
        name, folder = f"{folder.name}.{name}", folder.parent
    sys.path.insert(0, str(folder))
    if folder != path.parent.resolve():
        return imported(name.removesuffix(".__init__"), str(path))
    with said_in_one_line(str(path)):
        return loaded(name, path)


def loaded(name: str, path: Path) -> ModuleType:
    """The file as a module of this name, even if another module already has it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def imported(name: str, shown: str) -> ModuleType:
    with said_in_one_line(shown):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
                raise NotFound("module", shown) from None
            raise


@contextmanager
def said_in_one_line(name: str) -> Iterator[None]:
    """What an agent's own code raises while it is imported becomes :class:`BrokenAgent`."""
    try:
        yield
    except HoldfastError:
        raise
    except (Exception, SystemExit) as problem:
        raise BrokenAgent(name, problem) from problem


class BrokenAgent(InvalidInput):
    """The agent's own code fails when it is imported."""

    code = "broken-agent"

    def __init__(self, name: str, problem: BaseException) -> None:
        what = f"{type(problem).__name__}: {first_line(problem)}"
        super().__init__(f"{name} cannot be imported: {what}{raised_at(problem)} (holdfast --debug ... shows how)")


def raised_at(problem: BaseException) -> str:
    """The last line of code on the way that is not Python's own."""
    if isinstance(problem, SyntaxError):  # which says it itself
        return ""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith("<")]
    return f", at {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
