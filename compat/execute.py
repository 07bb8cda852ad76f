"""Run a folder of programs on one library, in one process, against the deterministic API server; print what each did.

Called by :mod:`compat.programs_check` as ``python -m compat.execute agents|standfast FOLDER``.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from compat.api_server import ApiServer, serve
from standfast.cli.commands.migrate import migrate_file


def run_program(path: Path, library: str, server: ApiServer) -> dict[str, Any]:
    """Return the output, the error and the requests of a program; for standfast its imports are migrated first."""
    text = migrate_file(path, path.parent).after if library == "standfast" else path.read_text()
    server.reset()
    out, error = io.StringIO(), None
    with contextlib.redirect_stdout(out), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            exec(compile(text, path.name, "exec"), {"__name__": "__main__"})
        except SystemExit as ended:
            error = f"exit {ended.code}"
        except BaseException as raised:  # noqa: BLE001 - compared with the other library
            error = type(raised).__name__
            traceback.print_exc()
    return {"output": out.getvalue(), "error": error, "requests": server.requests}


def main() -> None:
    library, folder = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    # A client that is collected after its event loop cannot close its connections, and every such report takes 50 ms
    # to write once a program has configured logging.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    results = {}
    with serve() as server:
        os.environ |= {"OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": server.url}
        tracing = importlib.import_module(f"{library}.tracing")
        for path in sorted(folder.glob("*.py")):
            tracing.set_trace_processors([])
            # openai-agents cannot use a client in a second event loop.
            importlib.import_module(library).set_default_openai_client(AsyncOpenAI(), use_for_tracing=False)
            results[path.stem] = run_program(path, library, server)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
