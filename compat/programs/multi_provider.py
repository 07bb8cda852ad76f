import asyncio

from agents import Agent, ModelProvider, MultiProvider, OpenAIProvider, RunConfig, Runner
from agents.models.multi_provider import MultiProviderMap
from agents.testing import ScriptedModel, assistant_message


class Mine(ModelProvider):
    def get_model(self, model_name):
        return ScriptedModel([[assistant_message(f"I am {model_name}")]])


async def main() -> None:
    routes = MultiProviderMap()
    routes.add_provider("mine", Mine())
    print(routes.has_prefix("mine"), routes.get_provider("other"), list(routes.get_mapping()))
    provider = MultiProvider(provider_map=routes)
    for name in ("mine/x", "mine/x/y", "openai/gpt-4.1", "gpt-4.1", "other/x", "mine"):
        try:
            model = provider.get_model(name)
            print(name, type(model).__name__, getattr(model, "model", None))
        except Exception:
            print(name, "refused")
    result = await Runner.run(Agent(name="a", model="mine/z"), "hi", run_config=RunConfig(model_provider=provider))
    print(result.final_output)
    for mode in ("model_id", "error"):
        provider = MultiProvider(unknown_prefix_mode=mode)
        try:
            print(mode, provider.get_model("other/x").model)
        except Exception:
            print(mode, "refused")
    provider = MultiProvider(openai_prefix_mode="model_id")
    print(provider.get_model("openai/gpt-4.1").model)
    print(
        type(OpenAIProvider(use_responses=False).get_model("m")).__name__,
        type(OpenAIProvider(use_responses=True).get_model(None)).__name__,
    )
    await provider.aclose()


asyncio.run(main())
