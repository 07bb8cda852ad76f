"""Encrypt what is stored about runs again, with the first key of the runtime.

Each run, approval and workspace is rewritten in one commit, so that a process that is killed leaves each of them under
its former keys or under the new one, and the next call continues. A run may be executed meanwhile: a commit that was
encrypted for the former seal is refused and encrypted again by its writer.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec

from standfast.base.errors import (
    ApprovalMoved,
    BlobsMissing,
    DocumentMoved,
    JournalMoved,
    NotFound,
    WorkspaceMoved,
    WrongKey,
)
from standfast.runtime._engine.budget_book import BUDGET_KIND, encode_budget, iterate_budgets, require_budget
from standfast.runtime._engine.encrypting_backend import EncryptingBackend, WorkspaceCipher, make_name
from standfast.runtime._engine.run_cipher import (
    MAGIC,
    NO_LINK,
    RunCipher,
    get_key_id,
    get_tag,
    locate_entry,
    locate_header,
    locate_snapshot,
    require_unlocked,
)
from standfast.runtime._engine.schedules import (
    SCHEDULE_KIND,
    decode_schedule,
    encode_schedule,
    iterate_schedules,
    require_readable,
)
from standfast.runtime._engine.webhook_outbox import (
    WEBHOOK_KIND,
    StoredWebhook,
    build_webhook_op,
    encode_target,
    iterate_webhooks,
)
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import RekeyReport
from standfast.store.backend import Backend
from standfast.store.operations import (
    DropCheckpoint,
    Op,
    PutBlob,
    PutDocument,
    RewriteRun,
    RewriteVersions,
    SaveApproval,
    SaveCheckpoint,
)
from standfast.store.records import ApprovalRecord, CheckpointRecord, DocumentRecord, RunRecord
from standfast.workers.errors import WorkspaceRefused
from standfast.workspaces.retention import iterate_workspaces
from standfast.workspaces.storage import WorkspaceStorage

_PAGE_SIZE = 200
_UNREADABLE = (WrongKey, RunTampered, WorkspaceRefused)


async def rekey_store(backend: Backend, cipher: RunCipher) -> RekeyReport:
    """Rewrite what is encrypted in a store, sessions excepted; report what cannot be read."""
    rekey = Rekey(backend, cipher)
    approvals = 0
    async for approval in _iter_approvals(backend):
        approvals += await rekey.attempt(rekey.rewrite_approval(approval.approval_id), approval.approval_id)
    workspaces = [
        one.key
        async for one in iterate_workspaces(backend)
        if await rekey.attempt(rekey.rewrite_workspace(one.key), one.key)
    ]
    runs = [
        one.run_id
        async for one in _iter_runs(backend)
        if await rekey.attempt(rekey.rewrite_run(one.run_id), one.run_id)
    ]
    async for schedule in iterate_schedules(backend):
        await rekey.attempt(rekey.rewrite_schedule(schedule.key), f"schedule {schedule.key}")
    async for budget in iterate_budgets(backend):
        await rekey.attempt(rekey.rewrite_budget(budget.key), f"budget {budget.key}")
    async for _, webhook in iterate_webhooks(backend):
        await rekey.attempt(rekey.rewrite_webhook(webhook.id), webhook.id)
    return RekeyReport(tuple(runs), approvals, tuple(workspaces), rekey.failed)


class Rekey:
    """Rewrites records of a backend, which is the one below the encryption."""

    def __init__(self, backend: Backend, cipher: RunCipher) -> None:
        self.backend, self.cipher = backend, cipher
        self.encrypting = EncryptingBackend(backend, cipher)
        self.failed: dict[str, str] = {}

    def is_current(self, data: bytes) -> bool:
        """Return whether a record needs no rewriting: it has the first key, or is not encrypted."""
        return not data.startswith(MAGIC) or get_key_id(data) == self.cipher.keyring.primary.id

    async def attempt(self, rewriting: Awaitable[bool], name: str) -> bool:
        try:
            return await rewriting
        except _UNREADABLE as problem:
            self.failed[name] = str(problem)
            return False

    async def rewrite_run(self, run_id: str) -> bool:
        """Rewrite header, journal, snapshots and seal in one commit. Return whether that was necessary."""
        cipher, primary = self.cipher, self.cipher.keyring.primary.id
        while (record := await self.backend.get_run(run_id)) is not None:
            if record.seal is None and not record.data.startswith(MAGIC):
                return False
            if set(cipher.verify(record).keys) == {primary}:
                return False
            try:
                op = await self.build_rewrite(record)
                await self.backend.commit(op)
            except JournalMoved:
                continue
            except NotFound:
                return False
            return True
        return False

    async def build_rewrite(self, record: RunRecord) -> RewriteRun:
        cipher, run_id, place = self.cipher, record.run_id, locate_header(record, record.revision)
        entries = await self.encrypting.read_journal(run_id, after=0)
        if len(entries) != record.journal_length:
            raise JournalMoved(run_id, expected=record.journal_length, found=len(entries))
        header = cipher.encrypt(cipher.decrypt(record.data, run_id, place), run_id, place)
        journal, tip = list[bytes](), NO_LINK
        for entry in entries:
            journal.append(cipher.encrypt(entry.data, run_id, locate_entry(entry.seq, entry.kind), link=tip))
            tip = get_tag(journal[-1])
        snapshots = await self.encrypting.read_events(run_id, after=0, limit=record.event_length + 1)
        seal = cipher.build_seal(run_id, keys=(), length=len(journal), tip=tip, header=get_tag(header))
        return RewriteRun(
            run_id=run_id,
            data=header,
            journal=tuple(journal),
            events=tuple(cipher.encrypt(one.data, run_id, locate_snapshot(one.kind)) for one in snapshots),
            previous_seal=record.seal or b"",
            seal=seal,
        )

    async def rewrite_approval(self, approval_id: str) -> bool:
        while (record := await self.backend.get_approval(approval_id)) is not None:
            if self.is_current(record.data):
                return False
            opened = self.cipher.open_approval(record)
            require_unlocked(opened)
            try:
                await self.encrypting.commit(make_approval_op(opened))
            except ApprovalMoved:
                continue
            return True
        return False

    async def rewrite_schedule(self, name: str) -> bool:
        def encode(document: DocumentRecord) -> bytes:
            return encode_schedule(require_readable(decode_schedule(document, self.cipher)), self.cipher)

        return await self.rewrite_document(SCHEDULE_KIND, name, encode)

    async def rewrite_budget(self, name: str) -> bool:
        def encode(document: DocumentRecord) -> bytes:
            return encode_budget(require_budget(document, self.cipher), self.cipher)

        return await self.rewrite_document(BUDGET_KIND, name, encode)

    async def rewrite_document(self, kind: str, key: str, encode: Callable[[DocumentRecord], bytes]) -> bool:
        while (document := await self.backend.get_document(kind, key)) is not None:
            if self.is_current(document.data):
                return False
            data = encode(document)
            try:
                await self.backend.commit(PutDocument(kind=kind, key=key, data=data, expected=document.revision))
            except DocumentMoved:
                continue
            return True
        return False

    async def rewrite_webhook(self, webhook_id: str) -> bool:
        """Rewrite the target of a webhook, which never changes otherwise."""
        document = await self.backend.get_document(WEBHOOK_KIND, webhook_id)
        if document is None:
            return False
        webhook = msgspec.json.decode(document.data, type=StoredWebhook)
        if self.is_current(webhook.target):
            return False
        target = webhook.open_target(self.cipher)
        if target is None:
            raise WrongKey(f"the webhook {webhook_id!r} was written with another encryption key")
        webhook = msgspec.structs.replace(webhook, target=encode_target(webhook_id, target, self.cipher))
        with suppress(DocumentMoved):  # it was deleted, or rewritten by another process
            await self.backend.commit(build_webhook_op(webhook, expected=document.revision))
        return True

    async def rewrite_workspace(self, key: str) -> bool:
        """Store the chunks of a workspace under their new names, then rewrite the rest in one commit."""
        while (record := await self.backend.get_workspace(key)) is not None:
            versions = await self.backend.read_versions(key)
            saved = [await self.backend.get_checkpoint(key, one.version) for one in versions if one.checkpoint_id]
            stale = [one for one in saved if one is not None and not self.is_current(one.data)]
            if not stale and all(self.is_current(one.data) for one in versions):
                return False
            cells = [one.data for one in await self.encrypting.read_versions(key)]
            rewrite = RewriteVersions(key=key, workspace_id=record.workspace_id, versions=tuple(cells))
            ops: list[Op] = [WorkspaceCipher(self.cipher).encrypt_rewrite(rewrite)]
            for checkpoint in stale:
                ops += await self.build_checkpoint_ops(checkpoint, record.workspace_id)
            try:
                await self.backend.commit(*ops)
            except (WorkspaceMoved, BlobsMissing, NotFound):
                continue
            return True
        return False

    async def build_checkpoint_ops(self, stale: CheckpointRecord, workspace_id: str) -> list[Op]:
        """Store the chunks of a checkpoint; return the operations that replace it by one that refers to them."""
        storage = WorkspaceStorage(self.encrypting)
        record, manifest = await storage.get_manifest(stale.key, stale.version)
        for digest in sorted(manifest.digests):
            if not await self.backend.find_blobs([make_name(self.cipher.keyring.primary, digest.hex())]):
                data = await storage.fetch(digest)
                await self.encrypting.commit(PutBlob(digest=digest.hex(), size=len(data), data=data))
        save = SaveCheckpoint(
            key=record.key,
            workspace_id=workspace_id,
            version=record.version,
            checkpoint_id=record.checkpoint_id,
            data=record.data,
            blobs=tuple(sorted(digest.hex() for digest in manifest.digests)),
            size=record.size,
        )
        drop = DropCheckpoint(key=record.key, version=record.version)
        return [drop, WorkspaceCipher(self.cipher).encrypt_checkpoint(save)]


def make_approval_op(record: ApprovalRecord) -> SaveApproval:
    """Return the operation that writes a decrypted approval again, at its next revision."""
    return SaveApproval(
        approval_id=record.approval_id,
        expected=record.revision,
        run_id=record.run_id,
        status=record.status,
        data=record.data,
        session_id=record.session_id,
        expires_at=record.expires_at,
    )


async def _iter_approvals(backend: Backend) -> AsyncIterator[ApprovalRecord]:
    after = ""
    while page := await backend.list_approvals(
        status=None, run_id=None, session_id=None, limit=_PAGE_SIZE, after=after
    ):
        for record in page:
            yield record
        after = page[-1].approval_id


async def _iter_runs(backend: Backend) -> AsyncIterator[RunRecord]:
    after = 0
    while page := await backend.list_runs(status=None, session_id=None, limit=_PAGE_SIZE, after=after):
        for record in page:
            yield record
        after = page[-1].order
