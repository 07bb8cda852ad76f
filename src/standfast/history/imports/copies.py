"""Copy conversations into a store, repeatedly if needed, and remove such copies."""

from collections.abc import AsyncIterable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.ids import validate_name
from standfast.base.items import Item, encode_items
from standfast.history.compat.branches import BranchRegistry
from standfast.history.compat.openai_agents_branches import BranchChanges, StoredBranches, create_branches
from standfast.history.encryption.session import EncryptedSession
from standfast.history.imports.sources import SourceSession
from standfast.history.store import Store

MARK = "imported_from"
"""The key in the metadata of a copy. Its value names the framework, the number of items that the last import copied and
found before, and the branches that were copied."""

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
    """Copy conversations and return a report. The items of each are copied in one commit; branches follow.

    If the process is killed, the next call completes the copies.

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
    session_id, notes = source.session_id, list(source.notes)
    if source.problem is not None:
        return CopiedSession(session_id=session_id, outcome="refused", note=source.problem)
    try:
        validate_name("session id", session_id)
        encode_items(source.items)
    except InvalidInput as problem:
        return CopiedSession(session_id=str(session_id), outcome="refused", note=str(problem))
    plain = store.session(session_id)
    session = EncryptedSession(session_id, plain, list(secrets)) if source.encrypted else plain
    known: list[Item] = await session.get_items()
    outcome = _compare(known, source.items)
    new = source.items[len(known) :] if outcome in ("copied", "extended") else []
    if new and not dry_run:
        # The mark comes first, so that a copy that is killed afterwards is known as one. The key makes a second
        # import at the same time harmless.
        mark = {**await _read_mark(store, session_id, framework), "items": len(source.items), "before": len(known)}
        await store.annotate(session_id, {MARK: mark})
        await session.add_items(new, key=f"import {framework} {len(known)} {len(source.items)}")
    if source.branches and source.encrypted:
        notes.append("branches of encrypted sessions are left out")
        source = msgspec.structs.replace(source, branches={})
    branches = len(source.branches) - 1 if outcome == "copied" and source.branches else 0
    if source.branches and outcome != "differs" and not dry_run:
        changes = await _copy_branches(source, store, framework)
        branches = len(changes.changed)
        if branches and outcome == "unchanged":
            outcome = "extended"
        if changes.different:
            outcome = "differs"
            notes.append(f"branches that were continued differently on both sides: {', '.join(changes.different)}")
    return CopiedSession(
        session_id=session_id, outcome=outcome, items=len(new), branches=branches, note="; ".join(notes)
    )


async def _copy_branches(source: SourceSession, store: Store, framework: str) -> BranchChanges:
    """Copy the branches of a session that was copied, and note their names, so that deleted ones stay deleted."""
    mark = await _read_mark(store, source.session_id, framework)
    if "items" not in mark:  # the session was not copied: it is the same by another way
        return BranchChanges()
    registry, stored = BranchRegistry(store.session(source.session_id)), StoredBranches(source.branches, source.usage)
    changes = await create_branches(registry, stored, created=mark.get("branches", ()))
    names = sorted({*mark.get("branches", ()), *source.branches})
    if names != mark.get("branches"):
        await store.annotate(source.session_id, {MARK: {**mark, "branches": names}})
    return changes


async def _read_mark(store: Store, session_id: str, framework: str) -> dict[str, Any]:
    with suppress(NotFound):
        mark = (await store.describe(session_id)).metadata.get(MARK)
        if isinstance(mark, dict) and mark.get("framework") == framework:
            return mark
    return {"framework": framework}


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
            # An import that was killed has left the items as they were before it.
            continued = info.head.length not in (mark.get("items"), mark.get("before"))
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
