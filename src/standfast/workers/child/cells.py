"""Compile and run cells of code, and format their errors."""

import ast
import inspect
import linecache
import os
import traceback
from types import CodeType
from typing import Any, NamedTuple

from standfast.workers.wire.messages import ErrorMessage

_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ASYNCIO_DIRECTORY = os.path.dirname(os.path.abspath(inspect.__file__)) + os.sep + "asyncio" + os.sep
_COMPILE_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_MAX_CACHED_SOURCES = 512
_MAX_CACHED_CELLS = 128
_MAX_CACHED_LENGTH = 10_000


def format_traceback(error: BaseException, *, limit: int) -> str:
    """Format a traceback without the frames of the worker itself."""
    summary = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    _strip_internal_frames(summary)
    text = "".join(summary.format()).encode("utf-8", "backslashreplace").decode()
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return text


def _strip_internal_frames(summary: traceback.TracebackException) -> None:
    stack = [frame for frame in summary.stack if not frame.filename.startswith(_PACKAGE_DIRECTORY)]
    while stack and stack[0].filename.startswith(_ASYNCIO_DIRECTORY):
        del stack[0]
    summary.stack[:] = stack
    for inner in (summary.__cause__, summary.__context__):
        if inner is not None:
            _strip_internal_frames(inner)


def format_exception_message(error: BaseException) -> str:
    """Return ``str(error)``, shortened, also when that raises or cannot be encoded."""
    try:
        return str(error)[:10_000].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not prevent the report
        return "<the exception's str() failed>"


def make_error_reply(request_id: str, problem: BaseException) -> ErrorMessage:
    """Return the reply to a request that failed."""
    name, text = type(problem).__name__, format_exception_message(problem)
    return ErrorMessage(execution_id=request_id, exception_type=name, exception_message=text)


class CompiledCell(NamedTuple):
    """A compiled cell: its statements, the expression at its end, and the source of its functions and classes."""

    body: CodeType | None
    last_expression: CodeType | None
    definitions: dict[str, str]


class CellRunner:
    """Compiles and runs cells in one namespace, and keeps their sources for tracebacks and checkpoints."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.count = 0
        self.definitions: dict[str, str] = {}
        # Agents send the same cell repeatedly, and compiling takes most of the time of a small cell.
        self._compiled: dict[str, CompiledCell] = {}
        self._loop: Any = None

    def run(self, code: str, *, filename: str | None, capture_source: bool) -> Any:
        """Run a cell and return the value of its last expression, or None when it ends with a statement."""
        self.count += 1
        cell = self._compiled.get(code) if filename is None and capture_source else None
        if cell is None:
            cell = self._compile(code, filename or f"<cell {self.count}>", capture_source=capture_source)
        self.definitions.update(cell.definitions)
        if cell.body is not None:
            self._execute(cell.body)
        if cell.last_expression is None:
            return None
        value = self._execute(cell.last_expression)
        if value is not None:
            self.namespace["_"] = value
        return value

    def _compile(self, code: str, name: str, *, capture_source: bool) -> "CompiledCell":
        self._cache_source(name, code)
        tree = compile(code, name, "exec", _COMPILE_FLAGS | ast.PyCF_ONLY_AST)
        definitions = _extract_definitions(tree, code) if capture_source else {}
        body, last = tree.body, None
        if body and isinstance(body[-1], ast.Expr):
            last = compile(ast.Expression(body.pop().value), name, "eval", _COMPILE_FLAGS)
        cell = CompiledCell(compile(tree, name, "exec", _COMPILE_FLAGS) if body else None, last, definitions)
        if len(code) <= _MAX_CACHED_LENGTH and name.startswith("<cell "):
            if len(self._compiled) >= _MAX_CACHED_CELLS:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[code] = cell
        return cell

    def _execute(self, code: CodeType) -> Any:
        value = eval(code, self.namespace)  # noqa: S307 - running the user's code is what a worker is for
        if code.co_flags & inspect.CO_COROUTINE:
            return self._run_coroutine(value)
        return value

    def _run_coroutine(self, coroutine: Any) -> Any:
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            # An interrupt leaves run_until_complete() while the task still runs.
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task], timeout=0.2))
            if task.done() and not task.cancelled():
                task.exception()
            raise

    def forget_loop(self) -> None:
        """Drop the event loop after a fork, since it belongs to the original process."""
        self._loop = None

    def _cache_source(self, name: str, code: str) -> None:
        lines = f"{code}\n".splitlines(keepends=True)  # without its newline, the last line has its carets beside it
        linecache.cache[name] = (len(code), None, lines, name)
        linecache.cache.pop(f"<cell {self.count - _MAX_CACHED_SOURCES}>", None)


def _extract_definitions(tree: ast.Module, code: str) -> dict[str, str]:
    definitions = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            source = None if node.decorator_list else ast.get_source_segment(code, node)
            definitions[node.name] = source or ast.unparse(node)
    return definitions
