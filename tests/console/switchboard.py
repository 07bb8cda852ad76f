"""Realtime agents for the tests of calls. Their model follows a script and speaks in tones."""

from standfast import Agent, FunctionModel, function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, EnergyDetector, ScriptedResponder

OPENING_HOURS = (
    "We are open from nine to five on weekdays, from ten to two on Saturdays, and closed on Sundays and on holidays. "
    "On the last Friday of each month we close at noon, because we count the cups and the saucers in the store."
)


@function_tool(needs_approval=True)
def credit(amount: int) -> str:
    """Give money back."""
    return f"credited {amount} euros"


def receptionist() -> RealtimeRunner:
    """Says the same long sentence whenever it may."""
    agent = RealtimeAgent(name="receptionist", instructions="Be kind.")
    model = LocalRealtimeModel(ScriptedResponder(default=OPENING_HOURS), detector=EnergyDetector)
    return RealtimeRunner(agent, model=model)


def cashier() -> RealtimeRunner:
    """Asks before it gives money back."""
    script = [CallTool("credit", {"amount": 5}), "It is done: five euros.", "<script>document.title='owned'</script>"]
    agent = RealtimeAgent(name="cashier", instructions="Be kind.", tools=[credit])
    return RealtimeRunner(agent, model=LocalRealtimeModel(script, pace=None))


clerk = Agent("clerk", model=FunctionModel(lambda request: "Good morning."))
