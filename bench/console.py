"""The console in headless Chromium: first paint, opening a run of 10,000 events, scrolling through 100,000."""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.environments import CompetitorUnavailable
from bench.figures import Figure, figure_with_limit
from bench.http_load import Server, serve
from bench.progress import show_progress
from bench.quick import pick_size
from standfast import Agent, FunctionModel, Runtime, function_tool
from standfast.store.operations import AppendJournal

EVENTS, MOST_EVENTS = pick_size(10_000, 200), pick_size(100_000, 1000)
EVENTS_OF_A_CALL = 5
ROUNDS, FRAMES = pick_size(9, 2), pick_size(240, 10)
DONE = "done"
# Scrolls from the beginning to the end, a part in each frame.
SCROLL = """
const [frames, finish] = arguments, list = document.querySelector('.virtual');
let frame = 0;
const step = () => {
  frame += 1;
  list.scrollTop = list.scrollHeight * frame / frames;
  if (frame <= frames) requestAnimationFrame(step);
  else finish();
};
requestAnimationFrame(step);
"""


@function_tool
def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order}: a cup and a saucer"


def choose(request: Any) -> Any:
    if len(request.input) < 2 * EVENTS / EVENTS_OF_A_CALL:
        return FunctionModel.call("look_up", order=str(len(request.input)))
    return DONE


async def make_runs(store: str) -> list[tuple[str, int]]:
    """Return the ids of two runs and how many events they have; of the longer one, most events change nothing."""
    agent = Agent("clerk", tools=[look_up], model=FunctionModel(choose))
    async with Runtime.open(store, agents=[agent]) as runtime:
        run = await runtime.start("clerk", "Look all orders up.", max_turns=None)
        await run.wait()
        longest = await runtime.start("clerk", "Look all orders up, again.", max_turns=None)
        await longest.wait()
        backend = runtime.store.backend
        entries = await backend.read_journal(longest.id, after=0)
        claimed = next((one.kind, one.data) for one in entries if one.kind == "run.owned")
        await backend.commit(AppendJournal(run_id=longest.id, entries=(claimed,) * (MOST_EVENTS - len(entries))))
        return [(one.id, len(await backend.read_journal(one.id, after=0))) for one in (run, longest)]


@contextmanager
def open_browser(server: Server) -> Iterator[Any]:
    try:
        from selenium import webdriver
    except ImportError:
        raise CompetitorUnavailable("selenium is not installed") from None
    browser, program = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or program is None:
        raise CompetitorUnavailable("there is no Chromium: make browser")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    with tempfile.TemporaryDirectory() as profile:
        for flag in ("headless", "no-sandbox", "disable-gpu", "window-size=1280,800", f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(program))
        try:
            driver.set_script_timeout(120)
            driver.get(f"{server.url}/?token={server.token}")
            yield driver
        finally:
            driver.quit()


def open_run(driver: Any, url: str, run_id: str, last: int) -> tuple[float, float]:
    """Return the milliseconds from the address to the first paint, and until the last event is shown."""
    driver.get("about:blank")
    driver.get(f"{url}/#/runs/{run_id}")
    shown = f"return document.querySelector('.slider output')?.textContent === '{last} of {last}' && performance.now()"
    while not (opened := driver.execute_script(shown)):
        time.sleep(0.01)
    paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (painted := driver.execute_script(paint)) is None:
        time.sleep(0.01)
    return painted, opened


def measure(driver: Any, url: str, run: tuple[str, int], longest: tuple[str, int]) -> Iterator[Figure]:
    rounds = [open_run(driver, url, *run) for _ in range(ROUNDS)]
    paints, opened = zip(*rounds[1:], strict=True)
    yield figure_with_limit("first paint", statistics.median(paints), 300)
    yield figure_with_limit(f"a run of {run[1]:,} events is open", statistics.median(opened), 1000)
    open_run(driver, url, *longest)
    show_progress(f"console: scrolling through {MOST_EVENTS:,} events")
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = read_processor_time(driver)
    driver.execute_async_script(SCROLL, FRAMES)
    busy = (read_processor_time(driver) - before) / FRAMES * 1000
    yield figure_with_limit(f"a frame while {MOST_EVENTS:,} events scroll, processor time", busy, 16)


def read_processor_time(driver: Any) -> float:
    """Return the seconds that the page has used of the processor."""
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


async def collect() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/console.db"
        show_progress(f"console: making a run of {EVENTS:,} events")
        runs = await make_runs(store)
        async with serve(store) as server:
            with open_browser(server) as driver:
                return await asyncio.to_thread(lambda: list(measure(driver, server.url, *runs)))


def figures() -> list[Figure]:
    return asyncio.run(collect())
