"""When items are too old to be shown."""

from collections.abc import Sequence

from holdfast.base.pairing import group_into_units
from holdfast.history.codec import DecodedRecord


def drop_expired(entries: Sequence[DecodedRecord], *, now: float, ttl: float) -> list[DecodedRecord]:
    """Those that are younger than ``ttl`` seconds.

    What belongs together, such as a call and its output and the reasoning before them, is as old as the youngest
    of it: it is shown whole or not at all.
    """
    oldest = now - ttl
    kept = []
    for unit in group_into_units([entry.item for entry in entries]):
        if any((entries[index].written_at or 0) > oldest for index in unit):
            kept += [entries[index] for index in unit]
    return kept
