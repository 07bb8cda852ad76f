"""Sessions whose methods take ``wrapper`` get the context of the run: at every read and write, through wrappers."""

from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography.fernet import Fernet

from factories.runs import approve_all
from openai_server import OpenAIServer
from standfast import (
    Agent,
    EncryptedSession,
    FunctionModel,
    GuardrailFunctionOutput,
    OpenAIResponsesCompactionSession,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


class TenantSession:
    """A third-party session that keeps a history for each tenant."""

    session_id, session_settings = "s", None

    def __init__(self) -> None:
        self.histories: dict[Any, list[Any]] = defaultdict(list)
        self.seen: set[Any] = set()

    def of(self, wrapper: Any) -> list[Any]:
        tenant = None if wrapper is None else wrapper.context["tenant"]
        self.seen.add(tenant)
        return self.histories[tenant]

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        items = self.of(wrapper)
        return list(items if limit is None else items[max(0, len(items) - limit) :])

    async def add_items(self, items: list[Any], *, wrapper: Any = None) -> None:
        self.of(wrapper).extend(items)

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        items = self.of(wrapper)
        return items.pop() if items else None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        self.of(wrapper).clear()


@function_tool(needs_approval=True)
def pay() -> str:
    return "paid"


def make_agent(**options: Any) -> Agent[Any]:
    steps = [[function_call("pay", {}, call_id="1")], [assistant_message("done")]]
    return Agent("a", tools=[pay], model=ScriptedModel(steps), **options)


def plain(session: TenantSession) -> Any:
    return session


def encrypted(session: TenantSession) -> Any:
    return EncryptedSession("s", session, Fernet.generate_key().decode())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [plain, encrypted])
@pytest.mark.parametrize("streamed", [False, True])
async def test_every_read_and_write_of_a_run_has_its_context(wrap: Any, streamed: bool) -> None:
    tenants = TenantSession()
    session, context = wrap(tenants), {"tenant": "t1"}
    agent = make_agent()
    state = (await Runner.run(agent, "q", session=session, context=context)).to_state()
    approve_all(state)
    state = await RunState.from_string(agent, state.to_string())
    if streamed:
        result = Runner.run_streamed(agent, state, session=session)
        async for _ in result.stream_events():
            pass
    else:
        await Runner.run(agent, state, session=session)
    assert tenants.seen == {"t1"}
    assert len(tenants.histories["t1"]) >= 4


@pytest.mark.parametrize("wrap", [plain, encrypted])
async def test_a_compaction_has_the_context_of_its_run(wrap: Any) -> None:
    tenants = TenantSession()
    async with OpenAIServer.running() as server:
        session = OpenAIResponsesCompactionSession(
            "s", wrap(tenants), client=server.client(), should_trigger_compaction=lambda context: True
        )
        for tenant in ("t1", "t2", "t1"):
            agent = Agent("a", model=ScriptedModel([[assistant_message(f"hello {tenant}")]]))
            await Runner.run(agent, f"a question of {tenant}", session=session, context={"tenant": tenant})
            sent = str(agent.model.calls[0].input)  # type: ignore[union-attr]
            assert [other for other in ("t1", "t2") if other in sent] == [tenant]
        await session.aclose()
    assert tenants.seen == {"t1", "t2"}
    if wrap is plain:
        assert {item.get("type") for item in tenants.histories["t1"]} >= {"compaction"}


async def test_a_run_whose_guardrail_trips_writes_with_its_context() -> None:
    async def refuse(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, True)

    tenants, context = TenantSession(), {"tenant": "t1"}
    agent = make_agent(output_guardrails=[OutputGuardrail(refuse)])
    state = (await Runner.run(agent, "q", session=tenants, context=context)).to_state()
    approve_all(state)
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent, state, session=tenants)
    assert await state.rewind(tenants)
    assert tenants.seen == {"t1"}


async def test_two_tenants_share_nothing() -> None:
    tenants = TenantSession()
    for tenant in ("t1", "t2"):
        agent = Agent("a", model=ScriptedModel([[assistant_message(f"hello {tenant}")]]))
        await Runner.run(agent, "q", session=tenants, context={"tenant": tenant})
        assert len(agent.model.calls[0].input) == 1  # type: ignore[union-attr]
    assert set(tenants.histories) == {"t1", "t2"}


async def test_a_context_that_is_passed_to_a_wrapper_reaches_the_session_inside() -> None:
    class Wrapped:
        context = {"tenant": "t7"}  # noqa: RUF012 - never changed

    tenants = TenantSession()
    session = encrypted(tenants)
    await session.add_items([{"role": "user", "content": "q"}], wrapper=Wrapped())
    assert await session.get_items(wrapper=Wrapped()) == [{"role": "user", "content": "q"}]
    assert tenants.seen == {"t7"}


async def test_methods_that_a_subclass_of_a_session_overrides_are_called_in_every_run(tmp_path: Path) -> None:
    class StoredTenantSession(SQLiteSession):
        """Has a history for each tenant, which the head of the stored session says nothing about."""

        histories: ClassVar[dict[str, list[Any]]] = {"ann": [{"role": "user", "content": "of ann"}], "bob": []}

        async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
            return list(self.histories[wrapper.context])

        async def add_items(self, items: Any, *, wrapper: Any = None) -> None:
            self.histories[wrapper.context] += items

    shown: list[list[Any]] = []

    def answer(request: Any) -> str:
        shown.append([item["content"] for item in request.input])
        return "noted"

    agent = Agent("a", model=FunctionModel(answer))
    session = StoredTenantSession("s", tmp_path / "s.db")
    for tenant in ("ann", "bob", "bob"):
        await Runner.run(agent, f"hello from {tenant}", session=session, context=tenant)
    assert shown[0] == ["of ann", "hello from ann"]
    assert shown[1] == ["hello from bob"]
    assert [shown[2][0], *shown[2][2:]] == ["hello from bob", "hello from bob"]
    session.close()
