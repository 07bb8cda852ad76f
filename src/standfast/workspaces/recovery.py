"""Restore a workspace in a worker: the latest checkpoint, then the cells after it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.base.errors import NotFound, Unsupported
from standfast.base.log import get_logger
from standfast.store.records import WorkspaceRecord
from standfast.workers import WorkerDied, WorkerRequestFailed, WorkerSession, WorkspaceManifest, WorkspaceRefused
from standfast.workers.cell_executors import run_prepared
from standfast.workers.errors import PrepareFailed
from standfast.workers.results import ExecutionResult, as_text
from standfast.workers.shared_contents import SharedContent, share_contents
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import WorkspaceVersion, digest_output, list_prepared

_MAX_LISTED = 20
_MAX_DEATHS = 2
_LOAD_SECONDS = 120.0
_CELL_NUMBER = re.compile(r"<cell \d+>")

_log = get_logger(__name__)


@dataclass(frozen=True)
class DifferingCell:
    """A cell that was run again and gave a different output."""

    version: int
    call: str


@dataclass
class RestoreReport:
    """What was restored of a workspace.

    ``checkpoint`` is the version that was loaded, 0 if none was. ``replayed`` are the versions whose cells were run
    again, ``missing`` those that could not be restored, ``differs`` the cells with another output, ``unkept`` the
    reasons for variables and files that could not be kept, ``renewed`` those of them that are there as the code that
    prepares a worker makes them, and ``refused`` the reasons for checkpoints that could not be read.
    """

    version: int
    checkpoint: int = 0
    replayed: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    differs: tuple[DifferingCell, ...] = ()
    unkept: dict[str, str] = field(default_factory=dict)
    renewed: set[str] = field(default_factory=set)
    refused: tuple[str, ...] = ()
    manifest: WorkspaceManifest | None = None
    contents: tuple[SharedContent, ...] = ()
    unloadable: int = 0
    """The version whose checkpoint was being loaded when the worker ended, or took too long."""
    calls: tuple[int, ...] = ()
    """The versions that calls have made, first to last."""
    prepared: list[str] = field(default_factory=list)
    """The code that has prepared the worker."""

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.differs or self.unkept)

    def describe(self) -> str:
        """Return what was restored, as a note for the model."""
        parts = ["[the Python session was restored"]
        if self.replayed:
            were = "was" if len(self.replayed) == 1 else "were"
            parts[0] += f"; {count_calls(self.replayed)} {were} run again"
        if self.missing:
            parts.append(f"the effects of {count_calls(self.missing)} are lost{self._name_calls(self.missing)}")
        if self.differs:
            named = self._name_calls([one.version for one in self.differs])
            parts.append(f"{len(self.differs)} of them gave a different output{named}")
        if gone := sorted(self.unkept.keys() - self.renewed):
            parts.append("these could not be kept: " + ", ".join(_shorten(gone)))
        if self.renewed:
            parts.append("these are as they were before the first call: " + ", ".join(_shorten(sorted(self.renewed))))
        if self.is_exact:
            parts.append("all variables and files are as they were")
            if self.replayed:
                parts[-1] += ", unless they depend on the time or on os.urandom"
        return "; ".join(parts) + "]"

    def _name_calls(self, versions: Sequence[int]) -> str:
        """Return which calls these are, counted from the first one that the conversation has."""
        places = [str(self.calls.index(version) + 1) for version in versions if version in self.calls]
        return f" ({'call' if len(places) == 1 else 'calls'} {', '.join(_shorten(places))})" if places else ""


def count_calls(versions: Sequence[int]) -> str:
    return "1 earlier call" if len(versions) == 1 else f"{len(versions)} earlier calls"


def _shorten(names: Sequence[str]) -> list[str]:
    listed = list(names[:_MAX_LISTED])
    return [*listed, f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else listed


def can_replay(session: WorkerSession) -> bool:
    """Return whether a cell may be run again: it acts on nothing but its workspace, as its sandbox has no network."""
    return session.config.sandbox.network == "none" and session.info.metadata.get("sandbox") != "plain"


async def restore_version(
    session: WorkerSession,
    storage: WorkspaceStorage,
    key: str,
    record: WorkspaceRecord,
    *,
    max_bytes: int,
    until: int = 0,
    unloadable: Sequence[int] = (),
    is_shared: bool = False,
) -> RestoreReport:
    """Restore the latest version in a new session. What could not be restored is in the report.

    The version ``until``, if there is one, and those after it are not replayed. ``unloadable`` are the versions whose
    checkpoints have ended a worker: one that did it twice is not loaded, and none after three deaths. With
    ``is_shared``, the large contents of the checkpoint stay in memory as long as the report has them.
    """
    report = RestoreReport(record.version)
    line = await storage.read_latest_line(key, record)
    report.calls = tuple(one.number for one in line if one.cell.code)
    rest = await _load_checkpoint(
        session, storage, key, line, report, unloadable, max_bytes=max_bytes, is_shared=is_shared
    )
    if report.unloadable:
        return report
    cells = [one for one in rest if one.cell.code is not None]
    kept = [one for one in cells if not 0 < until <= one.number] if can_replay(session) else []
    await replay_cells(session, kept, report)
    report.missing += tuple(one.number for one in cells[len(kept) :])
    return report


async def _load_checkpoint(
    session: WorkerSession,
    storage: WorkspaceStorage,
    key: str,
    line: Sequence[WorkspaceVersion],
    report: RestoreReport,
    unloadable: Sequence[int],
    *,
    max_bytes: int,
    is_shared: bool,
) -> Sequence[WorkspaceVersion]:
    """Load the latest checkpoint of the line that can be read; return the versions after it."""
    for place in reversed(range(len(line))):
        number = line[place].number
        if line[place].checkpoint_id is None:
            continue
        if unloadable.count(number) > 1 or len(unloadable) > _MAX_DEATHS:
            report.refused += (f"the worker ended while it loaded the checkpoint of version {number}",)
            continue
        preparation = _Preparation(session, line[: place + 1])
        try:
            _, manifest = await storage.get_manifest(key, number)
            contents = await share_contents(manifest, storage.fetch) if is_shared else ()
            loaded = await session.restore_workspace(
                manifest,
                storage.fetch,
                max_bytes=max_bytes,
                timeout=_LOAD_SECONDS,
                prepare=preparation.run if preparation.codes else None,
            )
            if preparation.codes:
                report.renewed = {entry.name for entry in await session.namespace()} & loaded.lost.keys()
        except (WorkspaceRefused, NotFound, Unsupported) as problem:  # nothing was loaded
            _log.warning("workspace %s: the checkpoint of version %d: %s", key, number, problem)
            report.refused += (str(problem),)
            continue
        except (WorkerDied, WorkerRequestFailed, TimeoutError) as problem:  # unpickling runs any code
            _log.warning("workspace %s: the worker ended with the checkpoint of version %d: %s", key, number, problem)
            report.unloadable = number
            return ()
        report.checkpoint, report.manifest, report.contents = number, manifest, contents
        report.unkept = {**loaded.lost, **loaded.lost_files, **preparation.problems}
        report.prepared = preparation.codes
        return line[place + 1 :]
    return line


class _Preparation:
    """Prepares a new worker for a checkpoint, as those were prepared in which it was made."""

    def __init__(self, session: WorkerSession, line: Sequence[WorkspaceVersion]) -> None:
        self.codes, self.problems = list_prepared(line), dict[str, str]()
        self._session = session
        self._timeout = next((one.cell.timeout for one in line if one.cell.prepare), None)

    async def run(self) -> None:
        for code in self.codes:
            result = await self._session.run(code, timeout=self._timeout, allow_input=False)
            if result.error is not None or result.timed_out:
                self.problems["prepare"] = as_text(result).splitlines()[-1]


async def replay_cells(session: WorkerSession, cells: Sequence[WorkspaceVersion], report: RestoreReport) -> None:
    """Run the cells again, in order, and compare their outputs."""
    for index, version in enumerate(cells):
        try:
            cell = version.cell
            # Cells that were made in another line may be run again after those of this one.
            due = "" if cell.prepare in report.prepared else cell.prepare
            result = await run_prepared(session, cell.code or "", cell.timeout, prepare=due, seed=cell.seed)
            # A name that could not be saved may exist again.
            present = {entry.name for entry in await session.namespace()} if report.unkept else set()
            present -= report.renewed
        except PrepareFailed as problem:
            _log.warning("version %d was not restored: %s", version.number, problem)
            result = None
        except WorkerDied:  # before or after the cell
            result = None
        if result is None or result.state == "lost":
            report.missing = tuple(one.number for one in cells[index:])
            return
        report.replayed += (version.number,)
        report.prepared += [due] if due else []
        # What was stopped may have been stopped at another moment.
        if compute_output_digest(result) != cell.output or result.timed_out:
            report.differs += (DifferingCell(version.number, version.cell.call),)
        report.unkept = {name: reason for name, reason in report.unkept.items() if name not in present}


def compute_output_digest(result: ExecutionResult) -> str:
    # The numbers of cells in tracebacks depend on what the worker has compiled before.
    return digest_output(_CELL_NUMBER.sub("<cell>", as_text(result)))


def make_restored_data(key: str, report: RestoreReport) -> dict[str, Any]:
    return {
        "key": key,
        "version": report.version,
        "checkpoint": report.checkpoint,
        "replayed": list(report.replayed),
        "missing": list(report.missing),
        "differs": [{"version": one.version, "call": one.call} for one in report.differs],
        "unkept": report.unkept,
        "refused": list(report.refused),
    }
