"""A backend whose blobs are in an object store: the database has their places, the object store their content.

An object is written before the commit that refers to it and deleted after the commit that frees it. Its name is never
used again, so that a deletion cannot reach an object that was written meanwhile. A process that dies in between leaves
an object that nothing refers to; :meth:`ObjectBlobs.sweep_objects` finds it.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from msgspec.structs import replace

from standfast.base.errors import InvalidInput, MissingExtra, StoreUnavailable
from standfast.base.ids import new_id
from standfast.store.backend import Backend
from standfast.store.operations import Op, OpResult, PutBlob
from standfast.store.records import BlobRecord, FreedBlobs

try:
    import obstore
    from obstore.store import from_url
except ImportError as missing:
    raise MissingExtra("blobs", "an object store") from missing

_FOLDER = "blobs"


def open_objects(url: str) -> Any:
    """Return the object store at a URL such as ``s3://bucket/prefix``, ``gs://...``, ``az://...`` or ``file:///path``.

    Credentials are taken from the environment, as the provider's own tools do. A new folder is accessible by its user
    only.
    """
    try:
        if url.startswith("file://"):
            Path(url2pathname(urlsplit(url).path)).mkdir(mode=0o700, parents=True, exist_ok=True)
        return from_url(url)
    except Exception as problem:  # noqa: BLE001 - the library raises many kinds
        scheme = url.partition("://")[0]  # the rest may contain a password
        raise InvalidInput(f"cannot open the object store {scheme}://...: {type(problem).__name__}") from None


class ObjectBlobs:
    """``backend`` with the content of its blobs in ``objects``. Everything else is left to ``backend``."""

    def __init__(self, backend: Backend, objects: Any) -> None:
        self._backend, self._objects = backend, objects
        self.indexes_words, self.location = backend.indexes_words, backend.location

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def for_owner(self, owner: str) -> "ObjectBlobs":
        return ObjectBlobs(self._backend.for_owner(owner), self._objects)  # type: ignore[attr-defined]

    async def commit(self, *ops: Op) -> list[OpResult]:
        written = {op.digest: await self._write(op) for op in ops if isinstance(op, PutBlob)}
        placed = [replace(op, data=b"", place=written[op.digest]) if isinstance(op, PutBlob) else op for op in ops]
        results = await self._backend.commit(*placed)
        freed = [place for result in results if isinstance(result, FreedBlobs) for place in result.places]
        if written:
            stored = await self._backend.find_blobs(list(written))
            used = {blob.place for blob in stored}
            freed += [place for place in written.values() if place not in used]  # it was stored before
        await self._delete(freed)
        return results

    async def read_blob(self, blob: BlobRecord) -> bytes | None:
        if blob.place is None:
            return await self._backend.read_blob(blob)
        try:
            found = await obstore.get_async(self._objects, blob.place)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except Exception as problem:
            raise _make_unavailable_error(problem) from problem

    async def sweep_objects(self, *, before: float) -> int:
        """Delete the objects that were written before this time and that no blob refers to; return their number."""
        count = 0
        async for page in obstore.list(self._objects, _FOLDER):
            aged = [one["path"] for one in page if one["last_modified"] < datetime.fromtimestamp(before, UTC)]
            digests = {path: path.split("/")[2].partition("-")[0] for path in aged if path.count("/") == 2}
            used = {blob.place for blob in await self._backend.find_blobs(list(digests.values()))}
            unused = [path for path in digests if path not in used]
            await self._delete(unused)
            count += len(unused)
        return count

    async def _write(self, op: PutBlob) -> str:
        place = f"{_FOLDER}/{op.digest[:2]}/{op.digest}-{new_id('o')}"
        try:
            await obstore.put_async(self._objects, place, op.data)
        except Exception as problem:
            raise _make_unavailable_error(problem) from problem
        return place

    async def _delete(self, places: list[str]) -> None:
        await asyncio.gather(*map(self._delete_one, places))

    async def _delete_one(self, place: str) -> None:
        try:
            await obstore.delete_async(self._objects, place)
        except FileNotFoundError:
            return
        except Exception as problem:
            raise _make_unavailable_error(problem) from problem


def _make_unavailable_error(problem: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the object store of the blobs: {type(problem).__name__}: {problem}")
