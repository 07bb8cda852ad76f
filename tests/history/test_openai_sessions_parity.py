"""The sessions that use the OpenAI API, with the runner of openai-agents."""

import agents
import pytest
from agents.testing import ScriptedModel, assistant_message, function_call

from openai_server import OpenAIServer
from standfast.base.item_pairs import find_unpaired
from standfast.history.openai.compaction import OpenAIResponsesCompactionSession
from standfast.history.openai.conversations import OpenAIConversationsSession
from standfast.history.stored_session import StoredSession
from standfast.store.memory import MemoryBackend


@agents.function_tool
def weather(city: str) -> str:
    return f"sunny in {city}"


async def run(agent: agents.Agent, text: str, session: agents.Session, streamed: bool) -> str:
    config = agents.RunConfig(tracing_disabled=True)
    if streamed:
        result = agents.Runner.run_streamed(agent, text, session=session, run_config=config)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)
    return str((await agents.Runner.run(agent, text, session=session, run_config=config)).final_output)


def make_agent(*more: object) -> tuple[agents.Agent, ScriptedModel]:
    model = ScriptedModel(
        [[function_call("weather", {"city": "Rome"}, call_id="c1")], [assistant_message("It is sunny.")], *more]
    )
    return agents.Agent(name="guide", model=model, tools=[weather]), model


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_is_stored_in_a_conversation_and_continued(streamed: bool) -> None:
    agent, model = make_agent([assistant_message("You asked about Rome.")])
    async with OpenAIServer.running() as server:
        session = OpenAIConversationsSession(openai_client=server.client())
        assert await run(agent, "Weather in Rome?", session, streamed) == "It is sunny."
        assert await run(agent, "What did I ask?", session, streamed) == "You asked about Rome."
        items = await session.get_items()
    assert [item["type"] for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
        "message",
    ]
    assert find_unpaired(items) == []
    assert len(model.calls[-1].input) == 5


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_compacts_its_history_when_the_trigger_is_passed(streamed: bool) -> None:
    agent, model = make_agent([assistant_message("You asked about Rome.")])
    async with OpenAIServer.running() as server:
        session = OpenAIResponsesCompactionSession(
            "trip",
            StoredSession("trip", MemoryBackend()),
            client=server.client(),
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 3,
        )
        assert await run(agent, "Weather in Rome?", session, streamed) == "It is sunny."
        assert [item.get("type") for item in await session.get_items()] == ["compaction"]
        assert len(session.take_compactions()) == 1
        assert await run(agent, "What did I ask?", session, streamed) == "You asked about Rome."
        assert server.log() == ["POST /responses/compact"]
    assert [item.get("type", "message") for item in model.calls[-1].input] == ["compaction", "message"]
