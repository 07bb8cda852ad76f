"""Names that models may call functions by."""

import re

_ELSE = re.compile(r"[^a-zA-Z0-9_]")


def function_name(text: str) -> str:
    """The text as a function's name: lower case, with an underscore for everything but letters and digits."""
    return _ELSE.sub("_", text).lower()
