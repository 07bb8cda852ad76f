import asyncio

from agents import Agent, ModelSettings, Runner
from agents.models import (
    get_default_model,
    get_default_model_settings,
    gpt_5_reasoning_settings_required,
    is_gpt_5_default,
)
from openai.types.shared import Reasoning


async def main() -> None:
    for model, settings in (
        ("gpt-5", None),
        ("gpt-5.1", ModelSettings(reasoning=Reasoning(effort="high", summary="auto"), verbosity="medium")),
        ("gpt-4.1", ModelSettings(temperature=0.1, top_p=0.5, max_tokens=50, store=False, metadata={"a": "b"})),
        ("gpt-5-mini", ModelSettings(response_include=["reasoning.encrypted_content"], parallel_tool_calls=True)),
    ):
        agent = (
            Agent(name="Assistant", model=model)
            if settings is None
            else Agent(name="Assistant", model=model, model_settings=settings)
        )
        print((await Runner.run(agent, "Hello")).final_output)
    print(
        get_default_model(),
        is_gpt_5_default(),
        gpt_5_reasoning_settings_required("gpt-5"),
        gpt_5_reasoning_settings_required("gpt-4.1"),
    )
    print(get_default_model_settings("gpt-5").verbosity, get_default_model_settings("gpt-4.1").verbosity)


asyncio.run(main())
