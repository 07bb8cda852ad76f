"""The socket of a capture that fails is closed only when nothing in the event loop refers to its number any more."""

import asyncio
import os
import signal
import socket

import pytest

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession


async def test_a_failed_capture_does_not_silence_a_socket_that_gets_its_number():
    """The next socket often has the number of one that was closed: what is read from it must arrive."""
    loop, heard, ends = asyncio.get_running_loop(), asyncio.Queue(), []

    def open_sockets():
        for _ in range(8):
            ours, theirs = socket.socketpair()
            loop.add_reader(ours, lambda ours=ours: heard.put_nowait(ours.recv(1)))
            ends.append((ours, theirs))

    async with WorkerSession(SessionConfig(sandbox=SandboxPolicy(level="plain"))) as session:
        pid = (await session.run("import os; os.getpid()")).value
        os.kill(pid, signal.SIGSTOP)  # so that it does not answer; without namespaces it has this number here, too
        capture = asyncio.create_task(session.capture())
        for _ in range(10):
            await asyncio.sleep(0)
        capture.cancel()
        loop.call_soon(open_sockets)
        with pytest.raises(asyncio.CancelledError):
            await capture
        os.kill(pid, signal.SIGCONT)
        for number, (ours, theirs) in enumerate(ends):
            theirs.send(bytes([number]))
            assert await asyncio.wait_for(heard.get(), 120) == bytes([number])
            loop.remove_reader(ours)
            ours.close()
            theirs.close()
        assert (await session.run("6 * 7")).value == 42
