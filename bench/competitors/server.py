"""The other end of ``bench.environments.Peer``. It needs nothing but the standard library."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Answer = Callable[..., Awaitable[Any]]


def serve(answers: dict[str, Answer]) -> None:
    """Answer requests from standard input until it ends. All of them share one event loop.

    What the measured libraries print goes to standard error: the answers have standard output for themselves.
    """
    with os.fdopen(os.dup(1), "w") as out, asyncio.Runner() as runner:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            what = request.pop("what")
            try:
                found = None if what == "ready" else runner.run(answers[what](**request))
                answer = {"found": found}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            try:
                print(json.dumps(answer), file=out, flush=True)
            except BrokenPipeError:  # nobody is there to hear it
                os._exit(1)
