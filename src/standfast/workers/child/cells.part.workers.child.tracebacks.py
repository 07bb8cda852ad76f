"""What went wrong, as the user should see it."""

import inspect
import os
import traceback

_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ASYNCIO_DIRECTORY = os.path.dirname(os.path.abspath(inspect.__file__)) + os.sep + "asyncio" + os.sep


def format_traceback(error: BaseException, *, limit: int) -> str:
    """The traceback as the user should see it: the user's frames and what they called, none of ours."""
    shown = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    _strip_internal_frames(shown)
    text = "".join(shown.format()).encode("utf-8", "backslashreplace").decode()
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
