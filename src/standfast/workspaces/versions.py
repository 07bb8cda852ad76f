"""Versions of a workspace: how each was made, and which one a conversation had at some point."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from standfast.store.records import VersionRecord


def name_session_workspace(session_id: str) -> str:
    return f"session:{session_id}"


def parse_session_id(key: str) -> str | None:
    """Return the session that a workspace belongs to, if it belongs to one."""
    kind, _, name = key.partition(":")
    return name if kind == "session" else None


def name_run_workspace(run_id: str) -> str:
    return f"run:{run_id}"


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a version was made from the version ``parent``: by running ``code``, or without code by going back to it.

    ``output`` is the digest of the text that the code produced, ``call`` the id of the tool call, with those of the
    calls around it if a nested agent made it, and ``run_id`` the run.
    """

    parent: int
    code: str | None = None
    output: str | None = None
    call: str = ""
    run_id: str = ""
    timeout: float | None = None


class WorkspaceVersion(msgspec.Struct, frozen=True):
    """A version with its cell, and the id and size of its checkpoint if it has one."""

    number: int
    cell: Cell
    created_at: float
    checkpoint_id: str | None = None
    size: int = 0


def encode_cell(cell: Cell) -> bytes:
    return msgspec.json.encode(cell)


def decode_version(record: VersionRecord) -> WorkspaceVersion:
    cell = msgspec.json.decode(record.data, type=Cell)
    return WorkspaceVersion(record.version, cell, record.created_at, record.checkpoint_id, record.size)


def digest_output(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def trace_line(versions: Sequence[WorkspaceVersion], number: int) -> list[WorkspaceVersion]:
    """Return the versions that lead to this one, first to last: what was rewound is left out."""
    by_number = {version.number: version for version in versions}
    line: list[WorkspaceVersion] = []
    while number:
        version = by_number[number]
        number = version.cell.parent
        if version.cell.code is not None or version.checkpoint_id is not None:
            line.append(version)
    return line[::-1]


def find_version(line: Sequence[WorkspaceVersion], outputs: Iterable[str]) -> int:
    """Return the latest version of a line that was made by one of the calls with these ids, or 0.

    ``outputs`` are the ids of all calls whose outputs the conversation has. An id that was used twice counts as often
    as it occurs.
    """
    remaining, found = Counter(outputs), 0
    for version in line:
        if version.cell.code is None:
            continue
        path = version.cell.call
        root = path.partition(":")[0]
        if remaining[path] > 0:
            remaining[path] -= 1
            found = version.number
        elif root != path and remaining[root] > 0:  # of a nested agent; its outer call may have made several
            found = version.number
    return found


def list_output_ids(items: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the ids of the calls whose outputs are among these items."""
    return [str(item.get("call_id")) for item in items if item.get("type") == "function_call_output"]
