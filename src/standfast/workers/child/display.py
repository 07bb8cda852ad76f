"""Convert values for the host, within size limits: to plain data, to text, and to MIME bundles."""

import sys
from typing import TYPE_CHECKING, Any

from standfast.workers.child.signals import interruptible, was_raised_by_handler
from standfast.workers.child.streams import flush_streams
from standfast.workers.wire import messages as m

if TYPE_CHECKING:
    from standfast.workers.child.loop import WorkerLoop

_PLAIN_TYPES = (bool, int, float, str, bytes, type(None))
_NUMBER_TYPES = (int, float, bool)
# The range of integers in MessagePack.
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
# The host refuses messages of too many parts, and counts a container as this many more than its items.
_CONTAINER_WEIGHT = 8
_SIZED_TYPES = (str, bytes, list, tuple, dict)
_REPR_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_pdf_": "application/pdf",
}


def to_plain(value: Any, *, limit: int) -> Any:
    """Return the value if it is plain data of at most ``limit`` items and characters, else None.

    Only exact built-in types are accepted, so that no user code runs here.
    """
    if type(value) in _NUMBER_TYPES:
        return value if type(value) is not int or _MIN_INT <= value <= _MAX_INT else None
    return value if _is_plain(value, [limit], depth=0) else None


def _is_plain(value: Any, budget: list[int], *, depth: int) -> bool:
    kind = type(value)
    budget[0] -= 1
    if budget[0] < 0 or depth > 32:
        return False
    if kind in _PLAIN_TYPES:
        if kind is int:
            return bool(_MIN_INT <= value <= _MAX_INT)
        if kind is str:
            budget[0] -= len(value)
            return budget[0] >= 0 and _is_encodable(value)
        if kind is bytes:
            budget[0] -= len(value)
            return budget[0] >= 0
        return True
    budget[0] -= _CONTAINER_WEIGHT
    if kind in (list, tuple, set, frozenset):
        return len(value) <= budget[0] and all(_is_plain(item, budget, depth=depth + 1) for item in value)
    if kind is dict:
        return len(value) <= budget[0] and all(
            type(key) in (str, int, bool, float)
            and _is_plain(key, budget, depth=depth + 1)
            and _is_plain(item, budget, depth=depth + 1)
            for key, item in value.items()
        )
    return False


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_repr(value: Any, *, limit: int) -> str:
    """Return the repr of a value, also when its ``__repr__`` fails, cut to ``limit`` characters."""
    try:
        text = str.__str__(repr(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken __repr__ must not prevent the result
        if was_raised_by_handler(error):
            raise
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > limit:
        return f"{text[: limit // 2]}...[{len(text) - limit} characters left out]...{text[-limit // 2 :]}"
    return text


def make_mime_bundle(value: Any, *, limit: int) -> dict[str, Any]:
    """Return the MIME bundle of an object; empty when it has only a repr.

    Representations over the limit are omitted and listed with their sizes under ``OMITTED_MIME_TYPE``.
    """
    if type(value) in _PLAIN_TYPES or issubclass(type(value), type):
        return {}
    bundle: dict[str, Any] = {}
    data = _call_repr_method(value, "_repr_mimebundle_", include=None, exclude=None)
    if issubclass(type(data), dict):
        bundle.update({mime: _to_builtin(item) for mime, item in data.items() if type(mime) is str})
    for method, mime in _REPR_METHODS.items():
        if mime not in bundle and (data := _call_repr_method(value, method)) is not None:
            bundle[mime] = _to_builtin(data)
    bundle.update(_call_suppressing_errors(_render_figure, value) or {})
    bundle.update(_call_suppressing_errors(_describe_table, value) or {})
    sent = {mime: item for mime, item in bundle.items() if to_plain(item, limit=limit) is not None}
    omitted = {mime: len(item) for mime, item in bundle.items() if mime not in sent and type(item) in _SIZED_TYPES}
    return {**sent, m.OMITTED_MIME_TYPE: omitted} if omitted else sent


def _call_repr_method(value: Any, method: str, **arguments: Any) -> Any:
    """Call a representation method of the object. Metadata that it may return as well is dropped."""
    function = _call_suppressing_errors(getattr, value, method, None)
    data = _call_suppressing_errors(function, **arguments) if callable(function) else None
    return data[0] if type(data) is tuple and data else data


def _to_builtin(item: Any) -> Any:
    """Convert an instance of a subclass of str or bytes to the built-in type."""
    for kind in (str, bytes):
        if issubclass(type(item), kind):
            return item if type(item) is kind else kind.__getitem__(item, slice(None))
    return item


def _call_suppressing_errors(function: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a representation that fails is omitted, as in notebooks
        if was_raised_by_handler(error):
            raise
        return None


def _render_figure(value: Any) -> dict[str, Any]:
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not isinstance(value, figure.Figure):
        return {}
    import io

    buffer = io.BytesIO()
    value.savefig(buffer, format="png", bbox_inches="tight")
    return {"image/png": buffer.getvalue()}


def _describe_table(value: Any) -> dict[str, Any]:
    """Return the first rows of a DataFrame as data, in addition to its own HTML."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        return {}
    import json

    head = value.head(50)
    table = {
        "columns": [str(name) for name in value.columns],
        "dtypes": [str(kind) for kind in value.dtypes],
        "rows": len(value),
        "preview": json.loads(head.to_json(orient="values", date_format="iso")),
    }
    return {"application/vnd.standfast.table+json": table}


def pop_open_figures() -> list[Any]:
    """Return the open figures of a cell and close them, as notebooks do."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return figures


class DisplayPublisher:
    """Sends displayed objects to the host, and renders the last value of a cell."""

    def __init__(self, worker_loop: "WorkerLoop") -> None:
        self._worker_loop = worker_loop
        self._repr_limit: int = worker_loop.settings.get("repr_limit", 100_000)
        self._value_limit: int = worker_loop.settings.get("value_limit", 1 << 20)

    def render_value(self, value: Any) -> tuple[Any, str, dict[str, Any]]:
        """Display the open figures of a cell, and return its last value as data, text and MIME bundle."""
        if "matplotlib.pyplot" in sys.modules:
            self.display_open_figures(exclude=value)
        if value is None:
            return None, "", {}
        return (
            to_plain(value, limit=self._value_limit),
            format_repr(value, limit=self._repr_limit),
            make_mime_bundle(value, limit=self._value_limit),
        )

    @interruptible
    def display_open_figures(self, *, exclude: Any = None) -> None:
        """Display the figures that a cell left open, except for the one that is its value."""
        for figure in pop_open_figures():
            if figure is not exclude and not self._worker_loop.snapshots.is_foreign_fork:
                self.display(figure)

    def display(self, value: Any, *, display_id: str | None = None) -> None:
        """Send an object to the host with all its representations within the limits. Called by user code."""
        data = make_mime_bundle(value, limit=self._value_limit)
        data.setdefault("text/plain", format_repr(value, limit=self._repr_limit))
        flush_streams()
        self._worker_loop.channel.send(
            m.DisplayMessage(data=data, display_id=display_id, execution_id=self._worker_loop.current_execution or "")
        )
