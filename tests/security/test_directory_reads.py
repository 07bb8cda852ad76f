"""What a worker can do to a host that reads its directory."""

import os
import tracemalloc

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


LONG_PATHS = """
import os
import tracemalloc
top = os.getcwd()
for _ in range(60):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for n in range(2000):
    MAKE
os.chdir(top)
"""


async def test_a_listing_of_long_paths_is_refused():
    async with open_launcher() as launch:
        session = await launch()
        assert (await session.run(LONG_PATHS.replace("MAKE", "open(str(n), 'w').close()"), timeout=120)).ok
        with pytest.raises(InvalidInput, match="too long to be listed"):
            await session.files.list()
        assert (await session.run("import shutil; shutil.rmtree('d' * 250)", timeout=120)).ok
        assert await session.files.list() == []


async def test_the_list_of_what_was_left_behind_is_bounded():
    async with open_launcher() as launch:
        session = await launch()
        assert (await session.run(LONG_PATHS.replace("MAKE", "os.mkfifo(str(n))"), timeout=120)).ok
        await session.restart()
        left = session.info.metadata["left_behind"]
        assert left[-1] == "..."
        assert sum(map(len, left)) < 17 << 20


async def test_names_that_are_not_listed_are_not_kept():
    """Where the number of files is not limited, as at `locked`, there can be millions of them."""
    make = "import os\nfor n in range(20_000): os.symlink('nothing', 'x' * 240 + str(n))"
    async with open_launcher() as launch:
        session = await launch()
        assert (await session.run(make, timeout=120)).ok
        tracemalloc.start()
        try:
            assert await session.files.list() == []
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
