import asyncio
import json
from dataclasses import dataclass
from typing import Any

from agents import Agent, AgentOutputSchema, AgentOutputSchemaBase, Runner


@dataclass
class Jokes:
    jokes: dict[int, str]


class CustomSchema(AgentOutputSchemaBase):
    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "CustomSchema"

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"jokes": {"type": "object", "properties": {"joke": {"type": "string"}}}},
        }

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return list(json.loads(json_str)["jokes"].values())


async def main() -> None:
    agent = Agent(name="Assistant", output_type=Jokes)
    try:
        await Runner.run(agent, "Tell me 3 jokes.")
    except Exception as error:
        print("refused", len(str(error)) > 0)
    agent.output_type = AgentOutputSchema(Jokes, strict_json_schema=False)
    print((await Runner.run(agent, "Tell me 3 jokes.")).final_output)
    agent.output_type = CustomSchema()
    print((await Runner.run(agent, "Tell me 3 jokes.")).final_output)


asyncio.run(main())
