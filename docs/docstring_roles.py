"""A griffe extension that turns references in docstrings (``:class:`Session```) into links of the reference."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc|data):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda match: make_link(obj, match), obj.docstring.value)


def make_link(place: griffe.Object, match: re.Match[str]) -> str:
    short, name = match.groups()
    label = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{resolve(place, name)}" optional><code>{label}</code></autoref>'


def resolve(place: griffe.Object, name: str) -> str:
    """Return the full path of a name as seen from the object with the docstring."""
    first, dot, rest = name.partition(".")
    if first == "standfast":
        return name
    try:
        path = place.resolve(first)
    except griffe.NameResolutionError:
        return name
    return f"{path}{dot}{rest}"
