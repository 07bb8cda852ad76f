"""The parts of a runtime, from opening its store to releasing its runs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from standfast.agents.agent import Agent
from standfast.history.compaction import HistoryCompaction
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.reader import PLAIN_CODEC
from standfast.history.store import Store
from standfast.lifecycle.scope import Scope
from standfast.runs.config import RunConfig
from standfast.runtime._engine.claim_loop import ClaimLoop
from standfast.runtime._engine.context import (
    RetryingBackend,
    RuntimeContext,
    ShutdownFlag,
    build_graphs,
    check_supports_runs,
    validate_options,
)
from standfast.runtime._engine.encrypting_backend import encrypt_backend
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.live_relay import LiveRelay
from standfast.runtime._engine.presence import Presence
from standfast.runtime._engine.recovery import RecoveryLoop
from standfast.runtime._engine.run_cipher import RunCipher
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime._engine.schedules import ScheduleLoop
from standfast.runtime._engine.subscriptions import RunSubscriptions
from standfast.runtime._engine.webhook_outbox import WebhookOutbox
from standfast.runtime._engine.webhook_sender import WebhookSender
from standfast.store.urls import open_backend


@asynccontextmanager
async def hold_runtime(
    url: Any,
    *,
    agents: Sequence[Agent[Any]],
    lease: float,
    approval_ttl: float | None,
    run_config: RunConfig | dict[str, Any] | None,
    encryption_key: str | Sequence[str] | None,
    compaction: HistoryCompaction | None,
    live: bool,
    max_runs: int | None = None,
) -> AsyncIterator[Scheduler]:
    """Open the store, renew leases and recover runs until the block is left; then release the runs."""
    validate_options(lease=lease, approval_ttl=approval_ttl, compaction=compaction, max_runs=max_runs)
    graphs, config = build_graphs(agents), RunConfig.coerce(run_config)
    codec = None if encryption_key is None else EncryptingCodec(encryption_key)
    opened = url.backend if isinstance(url, Store) else await open_backend(url)
    try:
        await check_supports_runs(opened)
        shutdown = ShutdownFlag()
        cipher = None if codec is None else RunCipher(codec.keyring)
        subscriptions = RunSubscriptions()
        outbox = WebhookOutbox(opened, is_encrypted=cipher is not None)
        backend: Any = RetryingBackend(encrypt_backend(opened, cipher), shutdown, subscriptions, outbox)
        renewer = LeaseRenewer(backend, ttl=lease)
        ctx = RuntimeContext(backend, graphs, renewer, config, lease, approval_ttl, shutdown=shutdown)
        ctx.subscriptions, ctx.outbox, outbox.clock = subscriptions, outbox, lambda: ctx.clock()
        ctx.codec, ctx.cipher, ctx.compaction = codec or PLAIN_CODEC, cipher, compaction
        ctx.stored, ctx.live, ctx.max_runs = opened, live, max_runs
        relay = subscriptions.relay = LiveRelay(ctx.runtime_id, subscriptions, cipher)
        if graphs:
            relay.open_soon()
        await ctx.sync_clock()
        async with Scope() as scope:
            scheduler = Scheduler(ctx, scope)
            scope.start(renewer.run(), name="standfast leases")
            scope.start(RecoveryLoop(scheduler).run(), name="standfast recovery")
            claims, presence = ClaimLoop(scheduler), Presence(scheduler)
            scheduler.on_runnable, relay.on_runnable = claims.wake, claims.wake_soon
            scheduler.on_capacity = claims.wake_with_capacity
            if graphs:
                schedules = ScheduleLoop(scheduler)
                ctx.on_schedule_changed = schedules.wake
                scope.start(schedules.run(), name="standfast schedules")
                sender = WebhookSender(ctx)
                outbox.on_added = sender.wake
                scope.start(sender.run(), name="standfast webhooks")
                scope.start(claims.run(), name="standfast claims")
                scope.start(presence.run(), name="standfast presence")
            scope.start(relay.run(opened), name="standfast live events")
            try:
                yield scheduler
            finally:
                await scheduler.aclose()
                await presence.withdraw()
                scope.cancel()
    finally:
        if not isinstance(url, Store):
            await opened.close()
