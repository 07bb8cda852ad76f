"""Copy conversations into a store, repeatedly if needed, and remove such copies."""

from collections.abc import AsyncIterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from standfast.base.items import Item
from standfast.history.compat.branches import BranchRegistry
from standfast.history.compat.openai_agents_branches import StoredBranches, create_branches
from standfast.history.encryption.session import EncryptedSession
from standfast.history.imports.sources import SourceSession
from standfast.history.store import Store

MARK = "imported_from"
"""The key in the metadata of a copy; its value names the framework, and the number of items that were copied."""

CopyOutcome: TypeAlias = Literal[
    "copied", "extended", "unchanged", "differs", "refused", "removed", "kept", "adopted", "returned", "deleted"
]


class CopiedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of copying one conversation.

    ``extended``: an earlier copy got the items that were added since. ``unchanged``: the store has all of them.
    ``differs``: the store has another conversation under this id, and keeps it. ``refused``: see ``note``. After the
    removal of copies: ``removed``, or ``kept`` because it was continued here. Of tables: ``adopted``, and when they are
    given back ``returned`` with the items that were added here, or ``deleted`` as it was here.
    """

    session_id: str
    outcome: CopyOutcome
    items: int = 0
    branches: int = 0
    note: str = ""


async def copy_sessions(
    source: AsyncIterable[SourceSession],
    store: Store,
    *,
    framework: str,
    dry_run: bool = False,
    secrets: Sequence[str] = (),
) -> list[CopiedSession]:
    """Copy conversations, each in one commit, and return a report.

    Encrypted ones are encrypted in the store with the first of ``secrets``. Doing it again copies what was added since,
    so that a program can be moved while the former one still runs.
    """
    return [
        await _copy_session(session, store, framework=framework, dry_run=dry_run, secrets=secrets)
        async for session in source
    ]


async def _copy_session(
    source: SourceSession, store: Store, *, framework: str, dry_run: bool, secrets: Sequence[str]
) -> CopiedSession:
    session_id, note = source.session_id, "; ".join(source.notes)
    if source.problem is not None:
        return CopiedSession(session_id=session_id, outcome="refused", note=source.problem)
    plain = store.session(session_id)
    session = EncryptedSession(session_id, plain, list(secrets)) if source.encrypted else plain
    known: list[Item] = await session.get_items()
    outcome = _compare(known, source.items)
    new = source.items[len(known) :] if outcome in ("copied", "extended") else []
    if new and not dry_run:
        # The key makes a second import at the same time harmless.
        await session.add_items(new, key=f"import {framework} {len(known)} {len(source.items)}")
        await store.annotate(session_id, {MARK: {"framework": framework, "items": len(source.items)}})
        if source.branches and not source.encrypted and outcome == "copied":
            await create_branches(BranchRegistry(plain), StoredBranches(source.branches, source.usage))
    if source.branches and source.encrypted:
        note = "; ".join(filter(None, (note, "branches of encrypted sessions are left out")))
    branches = len(source.branches) - 1 if outcome == "copied" and source.branches and not source.encrypted else 0
    return CopiedSession(session_id=session_id, outcome=outcome, items=len(new), branches=branches, note=note)


def _compare(known: list[Item], items: list[Item]) -> CopyOutcome:
    if known[: len(items)] == items and known:
        return "unchanged"
    if items[: len(known)] == known:
        return "extended" if known else "copied"
    return "differs"


async def remove_copies(store: Store, *, framework: str, dry_run: bool = False) -> list[CopiedSession]:
    """Remove the copies that were not continued here, and return a report. The others are kept."""
    report: list[CopiedSession] = []
    after: str | None = None
    while page := await store.sessions(limit=200, after=after):
        after = page[-1].cursor
        for info in page:
            mark = info.metadata.get(MARK)
            if not isinstance(mark, dict) or mark.get("framework") != framework:
                continue
            continued = info.head.length != mark.get("items")
            if not continued and not dry_run:
                await store.delete(info.session_id)
            report.append(
                CopiedSession(
                    session_id=info.session_id,
                    outcome="kept" if continued else "removed",
                    items=info.head.length,
                    note="it was continued here" if continued else "",
                )
            )
    return sorted(report, key=lambda entry: entry.session_id)
