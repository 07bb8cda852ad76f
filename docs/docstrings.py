"""Griffe extensions for the reference: links from references in docstrings, and the fields of classes."""

import ast
import re
from typing import Any

import griffe

FIELD_FUNCTIONS = ("field", "dataclasses.field", "msgspec.field", "Field", "pydantic.Field")
ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc|data):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda match: make_link(obj, match), obj.docstring.value)


class Fields(griffe.Extension):
    """Lists fields without a docstring below the text of their class, with types and defaults, and codes of errors."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        fields = [
            member for member in cls.members.values() if isinstance(member, griffe.Attribute) and is_listed(member)
        ]
        if cls.docstring is not None and fields:
            lines = "\n".join(format_field(field) for field in fields)
            cls.docstring.value += f"\n\n```python\n{lines}\n```"


def is_listed(field: griffe.Attribute) -> bool:
    annotation = str(field.annotation or "")
    is_error_code = field.name == "code" and isinstance(field.value, str) and field.value[:1] in "'\""
    is_field = is_error_code or (bool(annotation) and "ClassVar" not in annotation and "property" not in field.labels)
    return is_field and field.docstring is None and not field.name.startswith("_")


def format_field(field: griffe.Attribute) -> str:
    line = field.name if field.annotation is None else f"{field.name}: {field.annotation}"
    default = None if field.value is None else find_default(str(field.value))
    return line if default is None else f"{line} = {default}"


def find_default(value: str) -> str | None:
    """Return the default in the value of a field, ``None`` if it has none."""
    call = ast.parse(value, mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in FIELD_FUNCTIONS:
        return value
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    factory = words.get("default_factory")
    return words.get("default") if factory is None else f"{factory}()"


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
