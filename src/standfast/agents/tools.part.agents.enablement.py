"""Which tools and handoffs an agent has at this moment."""

import asyncio
from collections.abc import Awaitable, Iterable
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.agents.agent import AgentBase
    from holdfast.agents.context import RunContextWrapper

E = TypeVar("E")


async def filter_enabled(
    candidates: Iterable[E], context: "RunContextWrapper[Any]", agent: "AgentBase[Any]"
) -> list[E]:
    """Those whose ``is_enabled`` says so, in order; things without one are always enabled.

    Questions that have to wait for an answer are asked together. The first that fails ends the others.
    """
    kept: list[tuple[E, Any]] = []
    waiting: list[tuple[int, Awaitable[bool]]] = []
    try:
        for thing in candidates:
            asked = getattr(thing, "is_enabled", True)
            answer = asked(context, agent) if callable(asked) else asked
            if isawaitable(answer):
                waiting.append((len(kept), answer))
            kept.append((thing, answer))
    except BaseException:
        for _, question in waiting:
            if iscoroutine(question):  # nobody will wait for it now
                question.close()
        raise
    if waiting:
        answers = await _gather_answers([answer for _, answer in waiting])
        for (index, _), answer in zip(waiting, answers, strict=True):
            kept[index] = (kept[index][0], answer)
    return [thing for thing, answer in kept if answer]


async def _gather_answers(awaitables: list[Awaitable[bool]]) -> list[bool]:
    if len(awaitables) == 1:
        return [await awaitables[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_await_answer(question)) for question in awaitables]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await_answer(awaitable: Awaitable[bool]) -> bool:
    return await awaitable
