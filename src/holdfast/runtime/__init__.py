"""Durable runs: by id, in one store, driven by one process at a time. Names are resolved on first use."""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "contract": ["Approval", "Event", "RunInfo", "RunOutcome"],
    "errors": ["ApprovalSettled", "InvalidDecision", "RunEnded", "RunKeyReused", "SessionBusy"],
    "handle": ["RunHandle"],
    "records": ["Problem"],
    "runtime": ["Runtime"],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
