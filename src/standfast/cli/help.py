"""How the help of commands is laid out."""

import re
from typing import Any

from typer.core import TyperOption

PROGRAM = "standfast "


def join_lines(text: str) -> str:
    """Return the help of a command with one line for each paragraph, which the terminal wraps, and for each example."""
    return "\n\n".join(
        re.sub(f"^{PROGRAM}", f"$ {PROGRAM}", paragraph, flags=re.M)
        if paragraph.startswith(PROGRAM)
        else " ".join(map(str.strip, paragraph.split("\n")))
        for paragraph in text.split("\n\n")
    )


def shorten_types() -> None:
    """Let the help name the types of values by one word, and none for flags, which have no value."""
    describe = getattr(TyperOption, "display_type_rich", None)
    if describe is None:  # an older version of typer
        return

    def describe_value(option: TyperOption, ctx: Any) -> str | None:
        if option.is_bool_flag:
            return None
        return str(describe(option, ctx)).replace(" range>", ">")

    TyperOption.display_type_rich = describe_value  # type: ignore[method-assign, assignment]
