import asyncio
import base64

from agents import Agent, Runner


async def main() -> None:
    image = base64.b64encode(b"not a real image").decode()
    agent = Agent(name="Assistant", instructions="You are helpful.")
    result = await Runner.run(
        agent,
        [
            {
                "role": "user",
                "content": [{"type": "input_image", "detail": "auto", "image_url": f"data:image/jpeg;base64,{image}"}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "file_data": f"data:application/pdf;base64,{image}", "filename": "a.pdf"}
                ],
            },
            {"role": "user", "content": "What do you see?"},
        ],
    )
    print(result.final_output)


asyncio.run(main())
