"""What a value looks like from outside: plain data, text, and richer forms, each within a bound."""

import sys
from typing import TYPE_CHECKING, Any

from standfast.workers.child import resources
from standfast.workers.child.signals import interruptible, was_raised_by_handler
from standfast.workers.wire import messages as m

if TYPE_CHECKING:
    from standfast.workers.child.loop import WorkerLoop

OMITTED_MIME_TYPE = "application/vnd.standfast.left-out+json"
_PLAIN_TYPES = (bool, int, float, str, bytes, type(None))
_NUMBER_TYPES = (int, float, bool)
# What MessagePack can carry.
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
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
    """The value itself when it is plain data of at most ``limit`` parts and characters, else None.

    Only exact built-in types count, so that no code of the user's runs here.
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
    """``repr`` that neither fails nor floods."""
    try:
        shown = str.__str__(repr(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken __repr__ must not cost the result
        if was_raised_by_handler(error):
            raise
        shown = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if not shown.isascii():
        shown = shown.encode("utf-8", "backslashreplace").decode()
    if len(shown) > limit:
        return f"{shown[: limit // 2]}...[{len(shown) - limit} characters left out]...{shown[-limit // 2 :]}"
    return shown


def make_mime_bundle(value: Any, *, limit: int) -> dict[str, Any]:
    """The MIME bundle of a rich object; empty when it has only a repr.

    Forms over the limit are left out and named, with their sizes, under ``LEFT_OUT``.
    """
    if type(value) in _PLAIN_TYPES or issubclass(type(value), type):
        return {}
    found: dict[str, Any] = {}
    given = _call_repr_method(value, "_repr_mimebundle_", include=None, exclude=None)
    if issubclass(type(given), dict):
        found.update({mime: _to_builtin(item) for mime, item in given.items() if type(mime) is str})
    for method, mime in _REPR_METHODS.items():
        if mime not in found and (given := _call_repr_method(value, method)) is not None:
            found[mime] = _to_builtin(given)
    found.update(_call_suppressing_errors(_render_figure, value) or {})
    found.update(_call_suppressing_errors(_describe_table, value) or {})
    kept = {mime: item for mime, item in found.items() if to_plain(item, limit=limit) is not None}
    left_out = {mime: len(item) for mime, item in found.items() if mime not in kept and type(item) in _SIZED_TYPES}
    return {**kept, OMITTED_MIME_TYPE: left_out} if left_out else kept


def _call_repr_method(value: Any, method: str, **arguments: Any) -> Any:
    """What the object's own method gives for it, without the metadata that may come along."""
    produce = _call_suppressing_errors(getattr, value, method, None)
    given = _call_suppressing_errors(produce, **arguments) if callable(produce) else None
    return given[0] if type(given) is tuple and given else given


def _to_builtin(item: Any) -> Any:
    """Text and bytes of the library's own kind as what they are."""
    for kind in (str, bytes):
        if issubclass(type(item), kind):
            return item if type(item) is kind else kind.__getitem__(item, slice(None))
    return item


def _call_suppressing_errors(produce: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return produce(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a failing representation is left out, as notebooks do
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
    """A DataFrame's first rows as data, beside the HTML it renders itself."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        return {}
    import json

    head = value.head(50)
    described = {
        "columns": [str(name) for name in value.columns],
        "dtypes": [str(kind) for kind in value.dtypes],
        "rows": len(value),
        "preview": json.loads(head.to_json(orient="values", date_format="iso")),
    }
    return {"application/vnd.standfast.table+json": described}


def pop_open_figures() -> list[Any]:
    """The figures a cell left open, which are then closed, as notebooks do."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return figures


class DisplayPublisher:
    def __init__(self, worker_loop: "WorkerLoop") -> None:
        self._worker_loop = worker_loop
        self._repr_limit: int = worker_loop.settings.get("repr_limit", 100_000)
        self._value_limit: int = worker_loop.settings.get("value_limit", 1 << 20)

    def render_value(self, value: Any) -> tuple[Any, str, dict[str, Any]]:
        """The last value of a cell as data, text and richer forms, after the figures that the cell left open."""
        # Most cells of most sessions draw nothing.
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
        """Show the figures that the cell left open; not twice the one that is its value."""
        for figure in pop_open_figures():
            if figure is not exclude and not self._worker_loop.snapshots.is_foreign_fork:
                self.display(figure)

    def display(self, value: Any, *, display_id: str | None = None) -> None:
        """Show an object to the person watching: every rich form it has, within the limits."""
        data = make_mime_bundle(value, limit=self._value_limit)
        data.setdefault("text/plain", format_repr(value, limit=self._repr_limit))
        resources.flush_streams()
        self._worker_loop.channel.send(
            m.DisplayMessage(data=data, display_id=display_id, execution_id=self._worker_loop.current_execution or "")
        )
