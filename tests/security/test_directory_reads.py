"""Reading what is not a file loses no descriptor of the host."""

import os

import pytest

from factories.sandboxed_workers import open_launcher
from standfast.base.errors import InvalidInput


@pytest.mark.parametrize("make", ["os.mkdir('x')", "os.mkfifo('x')"], ids=["directory", "pipe"])
async def test_reading_something_else_than_a_file_is_refused_and_loses_no_descriptor(make):
    async with open_launcher() as launch:
        session = await launch()
        assert (await session.run(f"import os; {make}", timeout=60)).ok
        with pytest.raises(InvalidInput, match="not a regular file"):
            await session.files.read("x")
        before = set(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(InvalidInput):
                await session.files.read("x")
        assert set(os.listdir("/proc/self/fd")) == before
