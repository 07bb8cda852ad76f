"""One backend for each SQLite file of this process, so that each file has one writer thread."""

import os
import threading
from typing import Any

from standfast.store.sqlite.backend import MEMORY, SqliteBackend
from standfast.store.sqlite.files import get_file_id


class SharedSqliteBackend(SqliteBackend):
    """A backend with several users. The last one to close it closes the file."""

    user_count = 0

    def close_sync(self) -> None:
        with _shared_backends_lock:
            self.user_count -= 1
            if self.user_count > 0:
                return
            for key in [key for key, backend in _shared_backends.items() if backend is self]:
                del _shared_backends[key]
        super().close_sync()


_shared_backends: dict[tuple[Any, ...], SharedSqliteBackend] = {}


_shared_backends_lock = threading.RLock()


def get_shared_backend(path: str | os.PathLike[str], **options: Any) -> SharedSqliteBackend:
    """Return the backend of this process for a file, so that each file has one writer thread.

    In-memory databases are not shared.
    """
    backend = SharedSqliteBackend(path, **options)
    if backend.path == MEMORY:
        backend.user_count = 1
        return backend
    key = (os.path.realpath(backend.path), *sorted(options.items(), key=lambda option: option[0]))
    with _shared_backends_lock:
        shared = _shared_backends.get(key)
        # If the file was deleted or replaced, present users keep the old one, and new users get the new one.
        if shared is None or shared.file_id not in (None, get_file_id(shared.path)):
            shared = _shared_backends[key] = backend
        shared.user_count += 1
        return shared
