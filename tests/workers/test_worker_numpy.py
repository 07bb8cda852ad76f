"""numpy, pandas and matplotlib in workers: preloaded or not, shown, kept, and paid for once."""

import dataclasses
import os

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession, fork_server

CONFIG = SessionConfig(ready_timeout=120, sandbox=SandboxPolicy(require="namespaces"))
NUMPY = dataclasses.replace(CONFIG, preload=("numpy", "numpy.random"))
TASKS = "__import__('os').listdir('/proc/self/task')"


async def test_numpy_is_preloaded_with_its_time_known_and_without_threads():
    async with fork_server(NUMPY), WorkerSession(NUMPY) as session:
        assert session.info.metadata["mode"] == "fork"
        assert session.info.metadata["preloaded"]["numpy"] > 1.0
        assert session.info.metadata["preload_failed"] == {}
        assert (await session.run("'numpy' in __import__('sys').modules")).value is True
        result = await session.run(f"import numpy\na = numpy.ones((300, 300))\nfloat((a @ a).sum()), len({TASKS})")
        assert list(result.value) == [27_000_000.0, 1]


async def test_workers_of_one_server_do_not_draw_the_same_random_numbers():
    drawn = set()
    async with fork_server(NUMPY):
        for _ in range(3):
            async with WorkerSession(NUMPY) as session:
                code = "import numpy, random; [float(numpy.random.rand()), float(numpy.random.default_rng().random()), random.random()]"
                drawn |= set((await session.run(code)).value)
    assert len(drawn) == 9


async def test_preloaded_modules_are_shared_memory_of_all_workers():
    async with fork_server(NUMPY):
        async with WorkerSession(NUMPY) as session:
            preloaded = session.usage().private
            await session.run("import numpy; x = numpy.arange(10)")
            used = session.usage().private
    async with WorkerSession(CONFIG) as session:
        await session.run("import numpy; x = numpy.arange(10)")
        imported = session.usage().private
    assert preloaded < 6_000_000
    assert used < imported / 2


async def test_numpy_that_the_code_imports_itself_starts_no_threads_either():
    async with WorkerSession(CONFIG) as session:
        assert (await session.run(f"import numpy; len({TASKS})")).value == 1
        assert (await session.snapshot()).hazards == ()


async def test_a_module_that_fails_to_preload_is_named_and_the_others_are_there():
    config = dataclasses.replace(CONFIG, preload=("numpy", "there_is_no_such_module"))
    async with WorkerSession(config) as session:
        assert list(session.info.metadata["preloaded"]) == ["numpy"]
        assert session.info.metadata["preload_failed"]["there_is_no_such_module"].startswith("ModuleNotFoundError")


async def test_a_data_frame_is_a_text_a_table_and_html():
    async with WorkerSession(CONFIG) as session:
        code = "import pandas\ndf = pandas.DataFrame({'n': range(1000), 'when': pandas.Timestamp('2024-01-02')})\ndf"
        result = await session.run(code)
        assert "[1000 rows x 2 columns]" in result.repr
        assert "<table" in result.data["text/html"]
        table = result.data["application/vnd.standfast.table+json"]
        assert (table["columns"], table["rows"], len(table["preview"])) == (["n", "when"], 1000, 50)
        entries = {entry.name: entry for entry in await session.namespace()}
        assert entries["df"].shape == (1000, 2)
        assert entries["df"].size >= 16_000


async def test_figures_are_pictures_at_the_end_of_their_cell_and_not_twice():
    async with WorkerSession(CONFIG) as session:
        result = await session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.figure(); plt.title('two');")
        assert [item.data["image/png"][:8] for item in result.displays] == [b"\x89PNG\r\n\x1a\n"] * 2
        assert (await session.run("plt.get_fignums()")).value == []
        result = await session.run("figure, _ = plt.subplots(); figure")
        assert result.displays == ()
        assert result.data["image/png"].startswith(b"\x89PNG")
        failed = await session.run("plt.plot([1]); 1 / 0")
        assert failed.error.exception_type == "ZeroDivisionError"
        assert len(failed.displays) == 1
        assert (await session.run("plt.get_backend()")).value == "agg"
        assert (await session.run("plt.show()")).error is None


async def test_a_checkpoint_keeps_arrays_data_frames_and_shared_objects():
    async with WorkerSession(NUMPY) as session:
        await session.run(
            "import numpy as np, pandas as pd\n"
            "a = np.arange(1_000_000.0)\n"
            "same = a\n"
            "rng = np.random.default_rng(7)\n"
            "df = pd.DataFrame({'x': [1, 2], 'y': ['a', None]}, index=['p', 'q'])\n"
            "def norm(v): return float(np.linalg.norm(v))\n"
        )
        saved = await session.checkpoint()
        expected = (await session.run("[norm(a), rng.random(), df.to_json()]")).value
        assert saved.lost == {}
    async with WorkerSession(NUMPY) as other:
        restored = await other.restore(saved)
        assert {"np", "pd", "a", "same", "rng", "df", "norm"} <= set(restored.kept)
        assert (await other.run("[norm(a), rng.random(), df.to_json()]")).value == expected
        assert (await other.run("same is a")).value is True


async def test_an_array_goes_back_with_a_snapshot():
    async with WorkerSession(NUMPY) as session:
        await session.run("import numpy as np; a = np.zeros(1_000_000)")
        point = await session.snapshot()
        await session.run("a += 1")
        await session.rollback(point)
        assert (await session.run("float(a.sum())")).value == 0.0


async def test_an_array_over_the_memory_limit_is_a_memory_error_and_not_the_end():
    config = dataclasses.replace(NUMPY, sandbox=SandboxPolicy(require="namespaces", memory_mb=256))
    async with WorkerSession(config) as session:
        result = await session.run("import numpy as np; a = np.ones(100_000_000)")
        assert result.error.exception_type in ("MemoryError", "_ArrayMemoryError")
        assert result.state == "preserved"
        assert (await session.run("float(np.ones(1000).sum())")).value == 1000.0


async def test_the_environment_can_ask_for_more_threads():
    config = dataclasses.replace(CONFIG, environment={"OPENBLAS_NUM_THREADS": "2"})
    async with WorkerSession(config) as session:
        await session.run("import numpy; numpy.ones((400, 400)) @ numpy.ones((400, 400))")
        assert (await session.run(f"len({TASKS})")).value == min(2, len(os.sched_getaffinity(0)))


async def test_preloaded_modules_do_not_write_into_the_users_home(tmp_path):
    (tmp_path / "caching.py").write_text(
        "import os\nhome = os.path.expanduser('~')\nopen(os.path.join(home, 'cache'), 'w').write('x')"
    )
    tmp_path.chmod(0o755)
    config = dataclasses.replace(CONFIG, preload=("caching", "matplotlib.pyplot"), import_path=(str(tmp_path),))
    async with WorkerSession(config) as session:
        assert session.info.metadata["preload_failed"] == {}
        used = (await session.run("import caching, matplotlib; [caching.home, matplotlib.get_cachedir()]")).value
        assert len(set(used)) == 1
        assert used[0] != os.path.expanduser("~")
        assert not os.path.exists(used[0]), "it is gone when the workers come"
        shown = await session.run("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.title('x'); None")
        assert shown.ok
        assert shown.displays[0].data["image/png"].startswith(b"\x89PNG")
        assert shown.stderr == ""
