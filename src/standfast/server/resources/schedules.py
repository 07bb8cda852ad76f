"""``/schedules``: runs that start at given times."""

from standfast.runtime.types import Schedule
from standfast.server.endpoints import OPERATE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import NewSchedule

endpoints = EndpointTable()


@endpoints.add("GET", "/schedules", OPERATE, result=list[Schedule])
async def list_schedules(exchange: Exchange) -> list[Schedule]:
    """List all schedules by name."""
    return await exchange.runtime.schedules.list()


@endpoints.add("PUT", "/schedules/{name}", OPERATE, body=NewSchedule, result=Schedule)
async def set_schedule(exchange: Exchange) -> Schedule:
    """Create a schedule, or replace the one with this name."""
    name, new = exchange.path["name"], exchange.body
    schedule = await exchange.runtime.schedules.set(
        name,
        new.agent,
        new.input,
        cron=new.cron,
        every=new.every,
        timezone=new.timezone,
        session_id=new.session_id,
        owner=new.owner,
        max_turns=new.max_turns,
        overlap=new.overlap,
    )
    facts = {"schedule": name, "agent": new.agent, "owner": new.owner}
    await exchange.service.record_audit("schedule set", exchange.principal, facts)
    return schedule


@endpoints.add("GET", "/schedules/{name}", OPERATE, result=Schedule)
async def get_schedule(exchange: Exchange) -> Schedule:
    """Show a schedule, its next time and its last run."""
    return await exchange.runtime.schedules.get(exchange.path["name"])


@endpoints.add("POST", "/schedules/{name}/pause", OPERATE, result=Schedule)
async def pause_schedule(exchange: Exchange) -> Schedule:
    """Start no more runs until the schedule is resumed."""
    paused = await exchange.runtime.schedules.pause(exchange.path["name"])
    await exchange.service.record_audit("schedule paused", exchange.principal, {"schedule": paused.name})
    return paused


@endpoints.add("POST", "/schedules/{name}/resume", OPERATE, result=Schedule)
async def resume_schedule(exchange: Exchange) -> Schedule:
    """Continue a paused schedule with its next time."""
    resumed = await exchange.runtime.schedules.resume(exchange.path["name"])
    await exchange.service.record_audit("schedule resumed", exchange.principal, {"schedule": resumed.name})
    return resumed


@endpoints.add("DELETE", "/schedules/{name}", OPERATE)
async def delete_schedule(exchange: Exchange) -> None:
    """Delete a schedule. Its runs stay."""
    name = exchange.path["name"]
    await exchange.runtime.schedules.delete(name)
    await exchange.service.record_audit("schedule deleted", exchange.principal, {"schedule": name})
