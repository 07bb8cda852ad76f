"""The state machine of agent switches, under every order of events."""

from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from standfast.realtime._session.agent_transitions import (
    AgentTransitions,
    CommitSwitch,
    ResolveAgent,
    RestoreSettings,
    SendSettings,
    SkipSwitch,
    SwitchRequest,
)


class Changes(RuleBasedStateMachine):
    """``model`` is what the model has, ``doubt`` what it may have instead; ``turn`` is the pending command."""

    def __init__(self):
        super().__init__()
        self.core = AgentTransitions()
        self.core.current = self.model = self.agent()
        self.before = [self.core.current]
        self.doubt = None
        self.asked, self.ended = [], []
        self.turn = None

    def agent(self):
        return SimpleNamespace()

    def do(self, commands):
        for command in commands:
            match command:
                case ResolveAgent() | SendSettings() | RestoreSettings():
                    assert self.turn is None
                    self.turn = command
                    assert not isinstance(command, ResolveAgent) or self.doubt is None
                    if isinstance(command, RestoreSettings):
                        assert command.old is self.core.current
                case CommitSwitch(change, old, new):
                    assert (old, new, self.model) == (self.before[-1], self.core.current, new)
                    self.before.append(new)
                    self.end(change)
                case SkipSwitch(change):
                    assert change.expected_current is not None
                    assert change.expected_current is not self.core.current
                    self.end(change)

    def end(self, change):
        """Requests that were not cancelled end in the order in which they were submitted."""
        assert change is self.asked.pop(0)
        self.ended.append(change)

    @rule(how=st.sampled_from(["update", "handoff", "late handoff"]), back=st.integers(0, 2))
    def ask(self, how, back):
        earlier = self.before[-1 - back % len(self.before)]
        instead_of = {"update": None, "handoff": self.core.current, "late handoff": earlier}[how]
        change = SwitchRequest(self.agent(), how.removeprefix("late "), instead_of)
        self.asked.append(change)
        self.do(self.core.submit(change))

    @precondition(lambda self: isinstance(self.turn, ResolveAgent))
    @rule()
    def resolve(self):
        change, self.turn = self.turn.request, None
        self.do(self.core.on_resolved(change, self.agent()))

    @precondition(lambda self: isinstance(self.turn, SendSettings))
    @rule()
    def acknowledge(self):
        change, self.turn = self.turn, None
        self.model = change.new
        self.do(self.core.on_acknowledged(change.request, change.new))

    @precondition(lambda self: isinstance(self.turn, ResolveAgent | SendSettings))
    @rule(in_doubt=st.booleans())
    def fail(self, in_doubt):
        failed, self.turn = self.turn, None
        in_doubt = in_doubt and isinstance(failed, SendSettings)
        if in_doubt:
            self.model, self.doubt = None, failed.new
        self.asked.remove(failed.request)
        self.do(self.core.on_failed(failed.request, uncertain=in_doubt))
        assert not in_doubt or isinstance(self.turn, RestoreSettings)

    @precondition(lambda self: isinstance(self.turn, RestoreSettings))
    @rule()
    def restore(self):
        self.model, self.doubt, self.turn = self.turn.old, None, None
        self.do(self.core.on_restored())

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def give_up_waiting(self, data):
        change = data.draw(st.sampled_from(self.waiting()))
        self.asked.remove(change)
        assert self.core.on_failed(change, uncertain=True) == []

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def fail_after_the_end(self, data):
        assert self.core.on_failed(data.draw(st.sampled_from(self.ended)), uncertain=True) == []

    def waiting(self):
        return [change for change in self.asked if change is not getattr(self.turn, "request", None)]

    @invariant()
    def somebody_is_asked_as_long_as_something_is_wanted(self):
        assert self.turn is not None or not self.asked

    @invariant()
    def the_model_has_what_we_have(self):
        assert self.doubt is not None or self.model is self.core.current


TestChanges = Changes.TestCase
