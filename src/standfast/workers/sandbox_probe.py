"""Find out which sandbox level this machine supports, by starting workers."""

import dataclasses
from dataclasses import dataclass

from standfast.workers._host.forkserver import list_candidate_levels
from standfast.workers.config import SandboxPolicy, SessionConfig
from standfast.workers.errors import SandboxUnavailable, StartFailed
from standfast.workers.session import WorkerSession
from standfast.workers.wire.control import SANDBOX_LEVELS, SandboxLevel


@dataclass(frozen=True)
class SandboxReport:
    """The strongest level that works here, what it does not enforce, and why stronger levels failed."""

    level: SandboxLevel | None
    notes: tuple[str, ...] = ()
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)


async def probe_sandbox(config: SessionConfig | None = None) -> SandboxReport:
    """Start a worker at each level, from the strongest to the weakest, until one runs code."""
    config = config or SessionConfig()
    reasons: dict[str, str] = {}
    for level in list_candidate_levels(dataclasses.replace(config, sandbox=SandboxPolicy())):
        policy = dataclasses.replace(config.sandbox, level=level, require=level)
        try:
            async with WorkerSession(dataclasses.replace(config, sandbox=policy)) as session:
                notes = session.info.metadata["sandbox_notes"]
                result = await session.run("40 + 2")
        except (SandboxUnavailable, StartFailed) as problem:
            reasons[level] = str(problem)
            continue
        if result.value == 42:
            return SandboxReport(level, notes, reasons)
        reasons[level] = f"the worker could not run code: {result.error}"
    return SandboxReport(None, (), reasons or dict.fromkeys(SANDBOX_LEVELS, "not tried"))
