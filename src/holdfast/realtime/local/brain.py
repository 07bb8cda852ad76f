"""What answers: a script of turns, or anything else that can be asked. :mod:`model_brain` asks a text model."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.base.items import Item
from holdfast.realtime.local.conversation import Entry
from holdfast.realtime.local.responses import Response


@dataclass(frozen=True)
class Say:
    """Words to speak or to write. Several in a row are one text."""

    text: str


@dataclass(frozen=True)
class Call:
    """A function call. Arguments that are a string are sent as they are, valid or not."""

    name: str
    arguments: str | Mapping[str, Any] = "{}"
    call_id: str | None = None

    @property
    def json(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Pause:
    """Thinking takes time."""

    seconds: float


@dataclass(frozen=True)
class Question:
    """What a brain is asked: the conversation as items of the Responses API, and the session's settings.

    Speech is in there as what a recogniser understood. ``tools`` are declarations in the shape of the wire.
    """

    items: list[Item]
    instructions: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    max_output_tokens: int | None = None


class Brain(Protocol):
    """Answers questions, several at a time if it must. The generator is closed early when nobody listens any more."""

    def answer(self, question: Question) -> AsyncGenerator[Say | Call, None]:
        """What to say and call, in order, as soon as it is known. Raising fails the response."""


Step: TypeAlias = str | Say | Call | Pause | BaseException
Turn: TypeAlias = Step | Sequence[Step]


class ScriptEnded(Exception):
    """The brain was asked more often than its script has turns."""


class ScriptedBrain:
    """Takes the next turn of a script for every question.

    A turn is a text, a :class:`Call`, an exception to raise, or a list of these with :class:`Pause` between them.
    When the script is over, ``otherwise`` is the turn; without it the response fails.
    """

    def __init__(self, turns: Iterable[Turn] = (), *, otherwise: Turn | None = None) -> None:
        self._turns = deque(turns)
        self._otherwise = otherwise
        self.questions: list[Question] = []

    @property
    def remaining(self) -> int:
        return len(self._turns)

    def add(self, turn: Turn) -> None:
        """One more turn at the end of the script."""
        self._turns.append(turn)

    async def answer(self, question: Question) -> AsyncGenerator[Say | Call, None]:
        self.questions.append(question)
        turn = self._turns.popleft() if self._turns else self._otherwise
        if turn is None:
            raise ScriptEnded(f"the script has no turn for question {len(self.questions)}")
        for step in turn if isinstance(turn, Sequence) and not isinstance(turn, str) else [turn]:
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case BaseException():
                    raise step
                case str():
                    yield Say(step)
                case _:
                    yield step


def question_of(response: Response, tools: list[dict[str, Any]]) -> Question:
    """What a response is an answer to."""
    settings = response.settings
    limit = settings.max_output_tokens
    return Question(
        items=[item for entry in response.context if (item := _item_of(entry)) is not None],
        instructions=settings.instructions,
        tools=tools,
        tool_choice=settings.tool_choice,
        max_output_tokens=limit if isinstance(limit, int) else None,
    )


def _item_of(entry: Entry) -> Item | None:
    """An item as a text model reads it; ``None`` when nothing of it is left."""
    item = entry.item
    match item["type"]:
        case "function_call":
            return {name: item[name] for name in ("type", "call_id", "name", "arguments")}
        case "function_call_output":
            return {name: item[name] for name in ("type", "call_id", "output")}
    if item["role"] != "assistant":
        return {"type": "message", "role": item["role"], "content": [_part_of(entry, part) for part in item["content"]]}
    if not entry.text:
        return None
    said = [{"type": "output_text", "text": entry.text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": said}


def _part_of(entry: Entry, part: Item) -> Item:
    if part["type"] == "input_image":
        return {"type": "input_image", "image_url": part.get("image_url"), "detail": part.get("detail") or "auto"}
    heard = part.get("text") or part.get("transcript") or (entry.said if part["type"] == "input_audio" else None)
    unheard = f"(speech of {entry.audio_ms / 1000:.1f} seconds that nobody transcribed)"
    return {"type": "input_text", "text": heard if heard is not None else unheard}
