"""Names that models may call functions by."""

import re

_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


def to_function_name(text: str) -> str:
    """The text as a function's name: lower case, with an underscore for everything but letters and digits."""
    return _INVALID_CHARACTER.sub("_", text).lower()
