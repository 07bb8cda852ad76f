"""Shells of other frameworks' agents: what a path, a file or a command can make the host keep or raise."""

import errno

import pytest

from standfast.workers import WorkerError
from standfast.workers.shell import WorkerShell

MB = 1 << 20


@pytest.fixture
async def shell():
    async with WorkerShell() as shell:
        yield shell


async def test_a_file_without_an_end_is_not_read_into_the_host(shell):
    """This one has 256 GB, of which its status says nothing."""
    with pytest.raises(OSError, match="more than") as refused:
        await shell.read("/proc/self/pagemap", limit=2 * MB)
    assert refused.value.errno == errno.EFBIG


async def test_a_file_of_exactly_the_limit_is_read(shell):
    await shell.write(f"{shell.directory}/file", b"x" * MB)
    assert len(await shell.read(f"{shell.directory}/file", limit=MB)) == MB
    with pytest.raises(OSError, match="more than"):
        await shell.read(f"{shell.directory}/file", limit=MB - 1)


async def test_content_that_code_in_the_shell_makes_up_has_an_end(shell):
    await shell.session.run("def operate(name, *arguments): return ['ok', b'x' * (512 << 10)]")
    with pytest.raises(OSError, match="more than"):
        await shell.read("/file", limit=2 * MB)


async def test_a_directory_whose_listing_is_too_large_is_an_error_of_the_path(shell):
    await shell.run("python3 -c \"for n in range(8000): open('y' * 200 + str(n), 'w').close()\"")
    with pytest.raises(OSError, match="too large"):
        await shell.list_directory(shell.directory)


ANSWERS = ["7", "['ok']", "['maybe', 1]", "['ok', 'text']", "['error', 'text', 'text']", "['ok', [1, 2, 3]]", "{}"]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_of_another_form_is_an_error_of_the_worker(shell, answer):
    await shell.session.run(f"def operate(name, *arguments): return {answer}")
    for operation in (shell.read("/x"), shell.write("/x", b"x"), shell.status("/x"), shell.list_directory("/x")):
        with pytest.raises(WorkerError):
            await operation
