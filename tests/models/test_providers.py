"""Providers: models by name, and the client that they use."""

from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from factories.models import completion, message_item, response
from model_server import ModelServer, Reply
from standfast import (
    Agent,
    LocalModel,
    Model,
    ModelProvider,
    MultiProvider,
    MultiProviderMap,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    UserError,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_default_openai_key,
)
from standfast.models import ModelRequest, call_model
from standfast.models.openai import provider as openai_provider
from standfast.testing import ScriptedModel, assistant_message, function_call


@pytest.fixture(autouse=True)
def fresh_defaults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_DEFAULT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    yield
    vars(openai_provider._defaults).update(vars(openai_provider.OpenAIDefaults()))


async def test_the_api_is_chosen_by_the_provider_or_by_default() -> None:
    assert isinstance(OpenAIProvider(api_key="k").get_model("m"), OpenAIResponsesModel)
    assert isinstance(OpenAIProvider(api_key="k", use_responses=False).get_model("m"), OpenAIChatCompletionsModel)
    set_default_openai_api("chat_completions")
    assert isinstance(OpenAIProvider(api_key="k").get_model("m"), OpenAIChatCompletionsModel)
    with pytest.raises(UserError):
        set_default_openai_api("telepathy")  # type: ignore[arg-type]


async def test_without_a_key_the_error_names_the_environment_variable() -> None:
    provider = OpenAIProvider()
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        provider.get_model("m")
    set_default_openai_key("k")
    assert isinstance(provider.get_model(None), Model)


async def test_a_provider_closes_only_the_client_that_it_created(server: ModelServer, client: AsyncOpenAI) -> None:
    provider = OpenAIProvider(api_key="k", base_url=server.url)
    own_client = provider.get_client()
    assert provider.get_client() is own_client
    server.enqueue(Reply(response(message_item("hi"))))
    await call_model(provider.get_model("m"), ModelRequest("x"))
    assert server.requests[0].headers["authorization"] == "Bearer k"
    await provider.aclose()
    assert own_client.is_closed()
    for other in (OpenAIProvider(openai_client=client), OpenAIProvider()):
        set_default_openai_client(client)
        assert other.get_client() is client
        await other.aclose()
    assert not client.is_closed()


async def test_a_model_does_not_close_its_client(client: AsyncOpenAI) -> None:
    await OpenAIResponsesModel("m", client).close()
    await OpenAIChatCompletionsModel("m", client).close()
    assert not client.is_closed()


async def test_a_client_cannot_be_combined_with_its_settings(client: AsyncOpenAI) -> None:
    with pytest.raises(UserError, match="api_key"):
        OpenAIProvider(api_key="k", openai_client=client)


class RecordingProvider(ModelProvider):
    def __init__(self) -> None:
        self.requested: list[str | None] = []

    def get_model(self, model_name: str | None) -> Model:
        self.requested.append(model_name)
        return ScriptedModel()


async def test_a_prefix_selects_the_provider(server: ModelServer, client: AsyncOpenAI) -> None:
    provider, providers = RecordingProvider(), MultiProviderMap()
    providers.add_provider("mine", provider)
    multi = MultiProvider(provider_map=providers, openai_client=client, openai_use_responses=False)
    assert isinstance(multi.get_model("mine/big/model"), ScriptedModel)
    assert provider.requested == ["big/model"]
    server.enqueue(*[Reply(completion({"content": "hi"}))] * 4)
    sent = []
    for multi_provider, name in (
        (multi, "gpt"),
        (multi, "openai/gpt"),
        (MultiProvider(openai_client=client, openai_use_responses=False, openai_prefix_mode="model_id"), "openai/gpt"),
        (MultiProvider(openai_client=client, openai_use_responses=False, unknown_prefix_mode="model_id"), "meta/llama"),
    ):
        await call_model(multi_provider.get_model(name), ModelRequest("x"))
        sent.append(server.last_body["model"])
    assert sent == ["gpt", "gpt", "openai/gpt", "meta/llama"]
    with pytest.raises(UserError, match="'meta'"):
        multi.get_model("meta/llama")
    local = multi.get_model("local/")
    assert isinstance(local, LocalModel)
    assert multi.get_model("local/") is local
    await multi.aclose()
    assert not client.is_closed()


async def test_a_run_asks_its_provider_once_for_each_model_call():
    class CountingProvider(ModelProvider):
        def __init__(self) -> None:
            self.names: list[str | None] = []
            self.model = ScriptedModel([[function_call("now", {}, call_id="c1")], [assistant_message("noon")]])

        def get_model(self, model_name: str | None) -> Model:
            self.names.append(model_name)
            return self.model

    provider = CountingProvider()
    agent = Agent(name="clock", model="large", tools=[function_tool(lambda: "12:00", name_override="now")])
    result = await Runner.run(agent, "What time is it?", run_config=RunConfig(model_provider=provider))
    assert (result.final_output, provider.names) == ("noon", ["large", "large"])
