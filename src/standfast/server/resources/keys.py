"""``/keys`` and ``/audit``: who may use the server, and who did what."""

from standfast.server.auth.keys import ApiKey, ApiKeys, NewApiKey
from standfast.server.endpoints import MANAGE, EndpointTable
from standfast.server.exchange import Exchange, make_page, validate_page_size
from standfast.server.types import AuditListing, NewKey, Page
from standfast.store.audit_entries import AuditEntry

endpoints = EndpointTable()


@endpoints.add("GET", "/keys", MANAGE, result=list[ApiKey])
async def list_keys(exchange: Exchange) -> list[ApiKey]:
    """List all keys, without their secrets."""
    return list(await ApiKeys(exchange.runtime.store).list())


@endpoints.add("POST", "/keys", MANAGE, body=NewKey, result=NewApiKey, status=201)
async def create_key(exchange: Exchange) -> NewApiKey:
    """Create a key. Its secret is in this answer and nowhere else."""
    new = exchange.body
    return await ApiKeys(exchange.runtime.store).create(
        new.name, role=new.role, owner=new.owner, expires=new.expires_at, by=exchange.principal.subject
    )


@endpoints.add("DELETE", "/keys/{key_id}", MANAGE, result=ApiKey)
async def revoke_key(exchange: Exchange) -> ApiKey:
    """Revoke a key, everywhere within seconds."""
    keys = ApiKeys(exchange.runtime.store)
    return await keys.revoke(exchange.path["key_id"], by=exchange.principal.subject)


@endpoints.add("GET", "/audit", MANAGE, query=AuditListing, result=Page[AuditEntry])
async def list_audit(exchange: Exchange) -> Page[AuditEntry]:
    """List decisions, denied requests and changes of keys and owners, newest first."""
    query = exchange.query
    size = validate_page_size(exchange, query.limit)
    found = await exchange.service.audit.list(
        subject=query.subject,
        action=query.action,
        since=query.since,
        until=query.until,
        limit=size + 1,
        after=query.after,
    )
    return make_page(found, size, lambda entry: entry.id)
