"""A result as a model should read it."""

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from standfast.workers.results import ExecutionResult

_IMAGE_TYPES = ("image/png", "image/jpeg")
_OMITTED_MIME_TYPE = "application/vnd.standfast.left-out+json"
_CARRY_OVER_NOTES = {
    "variables": "",
    "files": "[this is a new Python session: the variables of earlier calls are gone, their files are still there]",
    "nothing": "[this is a new Python session: variables and files of earlier calls are gone]",
}


class EncodedImage(NamedTuple):
    mime: str
    base64: str


def as_text(result: ExecutionResult, *, carried_over: str = "variables", limit: int = 20_000) -> str:
    """What was printed, shown and returned, or the traceback; and what became of the variables if not all is well.

    ``found`` is what the code found of earlier calls. A text over the limit keeps head and tail.
    """
    parts = [_CARRY_OVER_NOTES[carried_over], result.stdout]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr}")
    parts += [_format_mime_bundle(item.data) for item in result.displays]
    if result.repr:
        parts.append(_format_mime_bundle({**result.data, "text/plain": result.repr}))
    text = "\n".join(part.rstrip("\n") for part in (*parts, *_format_problems(result)) if part)
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
    return text or "[no output]"


def extract_images(result: ExecutionResult) -> list[EncodedImage]:
    """The pictures that were shown, in order, the last value's included."""
    shown = [*(item.data for item in result.displays), result.data]
    return [EncodedImage(mime, text) for data in shown for mime, text in _find_images(data)]


def _find_images(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for mime in _IMAGE_TYPES:
        content = data.get(mime)
        if isinstance(content, bytes):
            yield mime, base64.b64encode(content).decode()
            return
        if isinstance(content, str):  # notebooks' way: encoded already
            yield mime, content.strip()
            return


def _format_mime_bundle(data: dict[str, Any]) -> str:
    words = str(data.get("text/markdown") or data.get("text/plain") or "")
    marks = [f"[{mime}]" for mime, _ in _find_images(data)]
    left_out = data.get(_OMITTED_MIME_TYPE)
    if isinstance(left_out, dict):
        marks += [f"[{mime} left out: {size} bytes are too many]" for mime, size in left_out.items()]
    return "\n".join([words, *marks] if words else marks)


def _format_problems(result: ExecutionResult) -> Iterator[str]:
    error = result.error
    if result.timed_out:
        kept = "; the variables are still there" if result.state == "preserved" else ""
        yield f"[stopped: the code took too long{kept}]"
    elif error is not None and result.state == "preserved":
        yield error.traceback or f"{error.exception_type}: {error.exception_message}"
    if result.state == "lost":
        yield f"[the Python session was lost ({result.reason}): all variables are gone]"
