"""Model settings of the agent, the run and the model: what is merged and what is sent."""

import asyncio

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from openai.types.shared import Reasoning


@function_tool
def noop() -> str:
    """Nothing."""
    return "nothing"


base = ModelSettings(
    temperature=0.2,
    top_p=0.9,
    max_tokens=100,
    metadata={"from": "agent"},
    extra_headers={"x-agent": "1"},
    extra_body={"service": "agent"},
    extra_args={"service_tier": "flex"},
    truncation="auto",
    store=False,
    prompt_cache_retention="24h",
)
override = ModelSettings(
    temperature=0.7,
    parallel_tool_calls=False,
    metadata={"to": "run"},
    extra_body={"more": 1},
    extra_args={"user": "ann"},
    verbosity="high",
    reasoning=Reasoning(effort="high", summary="auto"),
    top_logprobs=2,
)


async def main() -> None:
    merged = base.resolve(override)
    print({name: value for name, value in merged.to_json_dict().items() if value is not None})
    print(base.resolve(None) is base, base.temperature, ModelSettings() == ModelSettings())
    agent = Agent(name="A", model="gpt-4.1", model_settings=base, tools=[noop])
    print((await Runner.run(agent, "call noop {}", run_config=RunConfig(model_settings=override))).final_output)
    for name in ("gpt-5", "gpt-5-mini", "gpt-5.1", "gpt-4.1", "o3", "gpt-5.6-luna", "gpt-5-chat-latest"):
        made = Agent(name="B", model=name)
        print(name, getattr(made.model_settings.reasoning, "effort", None), made.model_settings.verbosity)
        await Runner.run(made, "hello")
    await Runner.run(Agent(name="C"), "hello", run_config=RunConfig(model="gpt-5"))
    await Runner.run(Agent(name="C", model_settings=ModelSettings(tool_choice="none")), "hello")
    for choice in ("required", "noop", "auto"):
        agent = Agent(name="D", model="gpt-4.1", tools=[noop], model_settings=ModelSettings(tool_choice=choice))
        await Runner.run(agent, "call noop {}")
    await Runner.run(
        agent.clone(reset_tool_choice=False, model_settings=ModelSettings(tool_choice="noop")), "call noop {}"
    )


asyncio.run(main())
