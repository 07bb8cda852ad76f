"""The realtime agent of ``standfast serve`` without agents. It needs no model and no network."""

from standfast.models.function_model import FunctionModel
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.local.model import LocalRealtimeModel
from standfast.realtime.runner import RealtimeRunner

OPENING_HOURS = "We are open from nine to five on weekdays, from ten to two on Saturdays, and closed on Sundays."


def create_shop_runner() -> RealtimeRunner:
    """Return the runner of one call: a shop that answers every question with its opening hours."""
    return RealtimeRunner(RealtimeAgent(name="shop"), model=LocalRealtimeModel(FunctionModel(lambda _: OPENING_HOURS)))
