"""References in docstrings (``:class:`Session```) as links of the reference, or as code where nothing is documented."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc|data):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda match: linked(obj, match), obj.docstring.value)


def linked(place: griffe.Object, match: re.Match[str]) -> str:
    short, name = match.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{path_of(place, name)}" optional><code>{shown}</code></autoref>'


def path_of(place: griffe.Object, name: str) -> str:
    """Where the name leads, as seen from its docstring."""
    first, dot, rest = name.partition(".")
    if first == "standfast":
        return name
    try:
        found = place.resolve(first)
    except griffe.NameResolutionError:
        return name
    return f"{found}{dot}{rest}"
