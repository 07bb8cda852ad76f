"""Versions of a workspace: how each was made, which one a conversation had at some point, and references to them."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from standfast.store.records import VersionRecord
from standfast.workers.errors import WorkspaceRefused

_NESTED = "nested:"


def name_session_workspace(session_id: str) -> str:
    return f"session:{session_id}"


def parse_session_id(key: str) -> str | None:
    """Return the session that a workspace belongs to, if it belongs to one."""
    if key.startswith(_NESTED):
        size, _, rest = key.removeprefix(_NESTED).partition(":")
        key = rest[: int(size)] if size.isdecimal() else ""
    kind, _, name = key.removeprefix("sandbox:").partition(":")
    return name if kind == "session" else None


def name_run_workspace(run_id: str) -> str:
    return f"run:{run_id}"


def name_sandbox_workspace(key: str) -> str:
    """Return the key of the sandbox's workspace in a conversation whose Python has the workspace ``key``."""
    return f"sandbox:{key}"


def name_nested_workspace(key: str, route: Sequence[str] = ()) -> str:
    """Return the key of the workspace that a nested run has in place of ``key``; without ``route`` their common prefix.

    It contains the length of ``key``, since ids of sessions may contain any separator.
    """
    return f"{_NESTED}{len(key)}:{key}:{':'.join(route)}"


def list_workspaces(key: str) -> tuple[str, str]:
    """Return the keys of all workspaces of a conversation: that of its Python, and that of its sandbox."""
    return key, name_sandbox_workspace(key)


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a version was made from the version ``parent``: by running ``code``, or without code by going back to it.

    ``output`` is the digest of the text that the code produced, ``call`` the id of the tool call, with those of the
    calls around it if a nested agent made it, and ``run_id`` the run, of a durable one the outermost. Versions of
    sandboxes have empty code, and ``sandbox`` is the state of the session if it has changed. ``place`` tells when this
    was: the tape of the session, its generation, and where the tape ended, all 0 if there was no session. Earlier
    releases did not record it. ``called`` is the same for the call, if the cell was run again later or its output is
    in the session of a fork. ``seed`` is that of the random generators, if they were seeded before the code: in a
    worker that had nothing of the workspace yet. ``went_back`` tells that the program went back, and not the
    conversation. ``prepare`` was run before the code, since it had not been run in a worker of this line.
    """

    parent: int
    code: str | None = None
    output: str | None = None
    call: str = ""
    run_id: str = ""
    timeout: float | None = None
    sandbox: dict[str, Any] | None = None
    place: tuple[int, int, int] | None = None
    called: tuple[int, int, int] | None = None
    seed: int | None = None
    went_back: bool = False
    prepare: str = ""


def shift_cells(cells: Iterable[Cell], start: int) -> list[Cell]:
    """Return the cells for versions that follow the version ``start`` of another workspace."""
    return [msgspec.structs.replace(cell, parent=cell.parent + start if cell.parent else 0) for cell in cells]


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
    """Return the version of a record; :class:`WorkspaceRefused` if it is encrypted or damaged."""
    try:
        cell = msgspec.json.decode(record.data, type=Cell)
    except msgspec.MsgspecError as problem:
        detail = f"version {record.version} cannot be read, it is encrypted or damaged: {problem}"
        raise WorkspaceRefused("damaged", detail) from None
    return WorkspaceVersion(record.version, cell, record.created_at, record.checkpoint_id, record.size)


def digest_output(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def trace_line(versions: Sequence[WorkspaceVersion], number: int) -> list[WorkspaceVersion]:
    """Return the versions that lead to this one, first to last: what was rewound is left out.

    Raises :class:`WorkspaceRefused` if one of them is missing, or does not follow an earlier one.
    """
    by_number = {version.number: version for version in versions}
    line: list[WorkspaceVersion] = []
    while number:
        version = by_number.get(number)
        if version is None or not 0 <= version.cell.parent < number:
            raise WorkspaceRefused("damaged", f"version {number} is missing, or is not made from an earlier one")
        number = version.cell.parent
        if version.cell.code is not None or version.checkpoint_id is not None:
            line.append(version)
    return line[::-1]


def list_prepared(line: Iterable[WorkspaceVersion]) -> list[str]:
    """Return the code that prepares a worker for the versions of a line, in order."""
    return list(dict.fromkeys(one.cell.prepare for one in line if one.cell.prepare))


def find_version(line: Sequence[WorkspaceVersion], outputs: Iterable[str]) -> int:
    """Return the latest version of a line that was made by one of the calls with these ids, or 0.

    ``outputs`` are the ids of all calls whose outputs the conversation has.
    """
    return max((version.number for version in select_versions(line, outputs)), default=0)


def select_versions(versions: Iterable[WorkspaceVersion], outputs: Iterable[str]) -> Iterator[WorkspaceVersion]:
    """Yield the versions made by calls with these ids; an id counts as often as it occurs."""
    remaining = Counter(outputs)
    for version in versions:
        if version.cell.code is None:
            continue
        path = version.cell.call
        root = path.partition(":")[0]
        if remaining[path] > 0:
            remaining[path] -= 1
            yield version
        elif root != path and remaining[root] > 0:  # of a nested agent; its outer call may have made several
            yield version


def choose_version(versions: Iterable[WorkspaceVersion], outputs: Iterable[str]) -> int:
    """Return the version, of whichever line, that fits best to a conversation with the outputs of these calls, or 0.

    That is the one whose line has most of these calls, then the one whose line has the fewest others, then the latest.
    """
    wanted = Counter(outputs)
    lines: dict[int, tuple[Counter[str], int]] = {0: (Counter(), 0)}
    best = (0, 0, 0)
    for version in versions:
        used, others = lines[version.cell.parent]
        path = version.cell.call
        root = path.partition(":")[0]
        is_wanted = version.cell.code is not None and (used[path] < wanted[path] or (root != path and wanted[root] > 0))
        if is_wanted:
            used = used + Counter([path])
        elif version.cell.code is not None and path:
            others += 1
        lines[version.number] = used, others
        if is_wanted:
            best = max(best, (used.total(), -others, version.number))
    return best[2]


def list_output_ids(items: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the ids of the calls whose outputs are among these items."""
    return [str(item.get("call_id")) for item in items if str(item.get("type")).endswith("_output")]


class WorkspaceRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The variables and files of a run's Python, as the latest finished call of the run left them.

    ``key`` and ``workspace_id`` name the workspace, and ``store`` says where it is. ``checkpoint`` is the id of the
    latest checkpoint up to ``version``, as far as it was known when the run was saved.
    """

    key: str
    workspace_id: str
    version: int
    checkpoint: str | None = None
    store: str = ""
