"""From the name of an agent on the command line to the agent."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from holdfast.agents.agent import Agent
from holdfast.base.errors import InvalidInput, NotFound
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
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise NotFound("module", name) from None
        raise InvalidInput(f"{name} could not be imported: {missing}") from missing


def load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound("file", str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
