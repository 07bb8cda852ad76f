"""Realtime sessions of standfast and openai-agents: the same program except for its import, with a model that does
nothing. The argument is the name of the module."""

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
    """Sessions of a library and the events of a conversation."""

    def __init__(self, module: str) -> None:
        self.library: Any = importlib.import_module(f"{module}.realtime")
        self.items: Any = importlib.import_module(f"{module}.realtime.items")

    def make_silent_model(self) -> Any:
        class SilentModel(self.library.RealtimeModel):  # type: ignore[misc, name-defined]
            async def connect(self, options: Any) -> None: ...

            def add_listener(self, listener: Any) -> None: ...

            def remove_listener(self, listener: Any) -> None: ...

            async def send_event(self, event: Any) -> None: ...

            async def close(self) -> None: ...

        return SilentModel()

    def conversation(self) -> Iterator[tuple[str, Any]]:
        """Yield the events of a model in some spoken turns, each with its kind."""
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
        """Return the seconds of processor time per event, with a reader of the session."""
        session = self.session()
        events = [event for _, event in self.conversation()]
        read = 0

        async def read_events() -> None:
            nonlocal read
            async for _ in session:
                read += 1

        async with session:
            reader = asyncio.ensure_future(read_events())
            await asyncio.sleep(0)
            gc.collect()
            start = time.process_time()
            for number, event in enumerate(events):
                await session.on_event(event)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            seconds = (time.process_time() - start) / len(events)
            reader.cancel()
        assert read > len(events), "some events were not read"
        return seconds

    async def deltas(self) -> dict[str, float]:
        """Return the median seconds to handle an event, by kind, without a reader."""
        session = self.session()
        times: dict[str, list[int]] = {"audio": [], "transcript": [], "other": []}
        async with session:
            for kind, event in self.conversation():
                start = time.perf_counter_ns()
                await session.on_event(event)
                times[kind].append(time.perf_counter_ns() - start)
        return {kind: statistics.median(values) / 1e9 for kind, values in times.items()}

    def session(self) -> Any:
        library = self.library
        return library.RealtimeSession(self.make_silent_model(), library.RealtimeAgent(name="a"), None)


async def measure(sessions: Sessions) -> dict[str, float]:
    rounds = [await sessions.deltas() for _ in range(ROUNDS)]
    medians = {kind: min(each[kind] for each in rounds) for kind in ("audio", "transcript")}
    return {"event": min([await sessions.stream() for _ in range(ROUNDS)]), **medians}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Sessions(sys.argv[1])))))
