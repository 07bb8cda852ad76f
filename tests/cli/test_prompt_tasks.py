"""Tasks that commands start beside a prompt or a run have ended when the command continues."""

import asyncio
import os
import signal

import pytest

from standfast.cli.commands._prompt import PromptObsolete, ask
from standfast.cli.commands.workers import forward_interrupts
from standfast.workers import SessionConfig, WorkerSession
from standfast.workers.wire.messages import ExecuteMessage


class CleanUp:
    """Waits for something that never happens, and takes several steps to end."""

    def __init__(self) -> None:
        self.has_ended = False

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.has_ended = True


@pytest.fixture
def standard_input(monkeypatch):
    """The writing end of a pipe that is the standard input."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as target:
        monkeypatch.setattr("sys.stdin", source)
        yield target


async def test_an_answered_prompt_has_ended_its_watcher(standard_input):
    watcher = CleanUp()
    standard_input.write("yes\n")
    standard_input.flush()

    assert await ask("sure? ", obsolete=watcher.wait()) == "yes"

    assert watcher.has_ended


async def test_the_error_of_a_watcher_is_raised_and_not_taken_for_a_decision(standard_input):
    async def fail() -> None:
        raise ConnectionError("the store is away")

    try:
        with pytest.raises(ConnectionError, match="the store is away"):
            await ask("sure? ", obsolete=fail())
    finally:
        await end_reader(standard_input)


async def test_a_prompt_that_is_no_longer_needed_ends(standard_input):
    try:
        with pytest.raises(PromptObsolete):
            await ask("sure? ", obsolete=asyncio.sleep(0))
    finally:
        await end_reader(standard_input)


async def end_reader(standard_input) -> None:
    """Answer the reader that the obsolete prompt has left."""
    standard_input.write("\n")
    standard_input.flush()
    await ask("")


async def test_an_interrupt_has_ended_although_the_command_fails():
    async with WorkerSession(SessionConfig()) as session:
        with pytest.raises(BrokenPipeError):
            await fail_while_interrupted(session)

        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        assert session.interrupt.__qualname__ not in names


async def fail_while_interrupted(session: WorkerSession) -> None:
    """Run code until a Ctrl-C has been handled, and then fail to print its output."""
    signalled, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGURG, signalled.set)
    try:
        async with forward_interrupts(session):
            async for _ in session.execute(ExecuteMessage(code="print('started')\nwhile True: pass")):
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGURG)
                await signalled.wait()
                raise BrokenPipeError
    finally:
        loop.remove_signal_handler(signal.SIGURG)
