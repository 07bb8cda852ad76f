"""Pages of listings, and whose data they contain."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from standfast.base.errors import InvalidInput
from standfast.server.access import Forbidden
from standfast.server.exchange import Exchange
from standfast.server.types import Page

T = TypeVar("T")


def validate_page_size(exchange: Exchange, limit: int) -> int:
    """Return the size of a page, or raise :class:`InvalidInput`."""
    largest = exchange.service.limits.page_size
    if not 1 <= limit <= largest:
        raise InvalidInput(f"limit must be from 1 to {largest}, not {limit}")
    return limit


def choose_owner(exchange: Exchange, requested: str | None) -> str | None:
    """Return the owner to list: the requested one if the principal may see it, else its own."""
    allowed = exchange.owner_filter
    if allowed is not None and requested not in (None, allowed):
        raise Forbidden(f"{exchange.endpoint.name} of other owners needs the role {exchange.rule.foreign.name.lower()}")
    return requested if allowed is None else allowed


def make_page(found: Sequence[T], size: int, get_cursor: Callable[[T], str]) -> Page[T]:
    """Return a page; ``found`` has one entry more than fits if there is another page."""
    kept = list(found[:size])
    return Page(kept, get_cursor(kept[-1]) if len(found) > size else None)
