"""A page to talk to the call centre: you speak or write, the agents answer by voice, and you are the supervisor, too.

    pip install '.[examples]'
    python examples/call_centre/call_page.py             then open the address that it prints
    python examples/call_centre/call_page.py --openai    a real voice, which understands yours, with OPENAI_API_KEY

Without an option the agents follow fixed rules, offline: they notice that you speak and stop, but understand only what
you write. Interrupt an answer: the conversation keeps what you heard.

The whole server is :func:`standfast.server.create_app`, mounted at ``/api``, beside the files of the page. ``calls=``
names what pages can call; a page that loses its connection has half a minute to come back.
"""

import argparse
import asyncio
from pathlib import Path
from types import FrameType

import uvicorn
from call_centre import CONFIG, choose_step, clerk, create_tts, front
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from standfast import FunctionModel, Runtime
from standfast.realtime import LocalRealtimeModel, RealtimeRunner
from standfast.server import LoopbackToken, create_app

STATIC = Path(__file__).parent / "static"


def make_offline_runner() -> RealtimeRunner:
    model = LocalRealtimeModel(FunctionModel(choose_step), tts=create_tts())
    return RealtimeRunner(front, model=model, config=CONFIG)


def make_openai_runner() -> RealtimeRunner:
    return RealtimeRunner(front, config=CONFIG)


class PageServer(uvicorn.Server):
    """Ends open calls before it stops."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.service.draining.set()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", default="sqlite:///calls.db")
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--openai", action="store_true", help="OpenAI's realtime model in place of the offline one")
    arguments = options.parse_args()
    token = LoopbackToken()
    async with Runtime.open(arguments.store, agents=[clerk]) as runtime:
        runner = make_openai_runner if arguments.openai else make_offline_runner
        api = create_app(runtime, auth=token, calls={"front": runner})
        app = Starlette(routes=[Mount("/api", api), Mount("/", StaticFiles(directory=STATIC, html=True))])
        app.state.service = api.state.service
        print(f"Open {token.make_url(f'http://127.0.0.1:{arguments.port}')} and press Call.", flush=True)
        config = uvicorn.Config(app, port=arguments.port, log_level="warning", timeout_graceful_shutdown=5)
        await PageServer(config).serve()


if __name__ == "__main__":
    asyncio.run(main())
