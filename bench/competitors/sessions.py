"""standfast's and openai-agents' realtime sessions: the same program, but for its import, and the same conversation
told by a model that is only there. The name of the module is the argument."""

import asyncio
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

TURNS, DELTAS, ROUNDS = 20, 250, 5
AUDIO = b"\0" * 4800


class Sessions:
    """One conversation after the other in sessions of the library."""

    def __init__(self, module: str) -> None:
        self.library: Any = importlib.import_module(f"{module}.realtime")
        self.items: Any = importlib.import_module(f"{module}.realtime.items")

    def silent_model(self) -> Any:
        class Silent(self.library.RealtimeModel):  # type: ignore[misc, name-defined]
            async def connect(self, options: Any) -> None: ...

            def add_listener(self, listener: Any) -> None: ...

            def remove_listener(self, listener: Any) -> None: ...

            async def send_event(self, event: Any) -> None: ...

            async def close(self) -> None: ...

        return Silent()

    def conversation(self) -> Iterator[tuple[str, Any]]:
        """What a model tells in some turns of speech, with the kind of each event."""
        library, items = self.library, self.items
        for turn in range(TURNS):
            question = items.UserMessageItem(
                item_id=f"u{turn}", role="user", type="message", content=[{"type": "input_text", "text": "Go on."}]
            )
            answer = items.AssistantMessageItem(item_id=f"a{turn}", role="assistant", type="message", content=[])
            response, item = f"r{turn}", f"a{turn}"
            yield "other", library.RealtimeModelItemUpdatedEvent(item=question)
            yield "other", library.RealtimeModelTurnStartedEvent(response_id=response)
            yield "other", library.RealtimeModelItemUpdatedEvent(item=answer)
            for _ in range(DELTAS):
                yield "audio", library.RealtimeModelAudioEvent(AUDIO, response, item, 0)
                yield "transcript", library.RealtimeModelTranscriptDeltaEvent(item, "word ", response)
            yield "other", library.RealtimeModelAudioDoneEvent(item_id=item, content_index=0)
            yield "other", library.RealtimeModelTurnEndedEvent(response_id=response)

    async def stream(self) -> float:
        """Seconds of processor time per event, with somebody who reads what the session tells."""
        session = self.session()
        told = [event for _, event in self.conversation()]
        read = 0

        async def reading() -> None:
            nonlocal read
            async for _ in session:
                read += 1

        async with session:
            reader = asyncio.ensure_future(reading())
            await asyncio.sleep(0)
            gc.collect()
            begin = time.process_time()
            for number, event in enumerate(told):
                await session.on_event(event)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            seconds = (time.process_time() - begin) / len(told)
            reader.cancel()
        assert read > len(told), "not everything was read"
        return seconds

    async def deltas(self) -> dict[str, float]:
        """Seconds at the median until the session has an event, by kind; nobody reads."""
        session = self.session()
        taken: dict[str, list[int]] = {"audio": [], "transcript": [], "other": []}
        async with session:
            for kind, event in self.conversation():
                start = time.perf_counter_ns()
                await session.on_event(event)
                taken[kind].append(time.perf_counter_ns() - start)
        return {kind: statistics.median(values) / 1e9 for kind, values in taken.items()}

    def session(self) -> Any:
        library = self.library
        return library.RealtimeSession(self.silent_model(), library.RealtimeAgent(name="a"), None)


async def measured(sessions: Sessions) -> dict[str, float]:
    medians = [await sessions.deltas() for _ in range(ROUNDS)]
    found = {kind: min(each[kind] for each in medians) for kind in ("audio", "transcript")}
    return {"event": min([await sessions.stream() for _ in range(ROUNDS)]), **found}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(Sessions(sys.argv[1])))))
