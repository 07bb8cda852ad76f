import asyncio

from agents.strict_schema import ensure_strict_json_schema

schema = {"type": "object", "properties": {"a": {"type": "string"}}}


async def main() -> None:
    print(sorted(ensure_strict_json_schema(schema).items(), key=str))


asyncio.run(main())
