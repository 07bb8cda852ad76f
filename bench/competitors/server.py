"""The process side of ``bench.environments.Competitor``. It uses the standard library only."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[..., Awaitable[Any]]


def serve(handlers: dict[str, Handler]) -> None:
    """Handle requests from standard input until it ends, all in one event loop.

    Output of the measured libraries is redirected to standard error, so that standard output has only responses.
    """
    with os.fdopen(os.dup(1), "w") as out, asyncio.Runner() as runner:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            operation = request.pop("operation")
            try:
                result = None if operation == "ready" else runner.run(handlers[operation](**request))
                response: dict[str, Any] = {"result": result}
            except Exception as error:
                response = {"error": f"{type(error).__name__}: {error}"}
            try:
                print(json.dumps(response), file=out, flush=True)
            except BrokenPipeError:  # the benchmark has ended
                os._exit(1)
