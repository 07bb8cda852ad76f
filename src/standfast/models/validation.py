"""Whether what a model answered is an answer. Whoever writes a model learns here what is wrong with it, and where."""

from collections.abc import Mapping
from typing import Any

from standfast.agents.errors import ModelBehaviorError
from standfast.base.errors import InvalidItem
from standfast.base.items import Item, encode_item, sanitize_json
from standfast.base.usage import Usage
from standfast.models.attribute_items import wrap_attributes
from standfast.models.interface import ModelResponse

_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal"}


def validate_response(response: Any) -> ModelResponse:
    """The answer, or :class:`ModelBehaviorError` that names what is wrong.

    Half characters (lone surrogates), with which some providers end a text that was cut, become U+FFFD: they could
    be neither stored nor sent.
    """
    if not isinstance(response, ModelResponse):
        raise ModelBehaviorError(f"a model must answer with a ModelResponse, not with {type(response).__name__}")
    if not isinstance(response.usage, Usage):
        raise ModelBehaviorError(f"the usage of an answer must be a Usage, not {response.usage!r}")
    for name in ("response_id", "request_id"):
        given = getattr(response, name)
        if given is not None and not isinstance(given, str):
            raise ModelBehaviorError(f"the {name} of an answer must be a string or None, not {given!r}")
    if not isinstance(response.output, list | tuple):
        raise ModelBehaviorError(f"the output of an answer must be a list, not {type(response.output).__name__}")
    try:
        items = response.items
        for index, item in enumerate(items):
            try:
                encode_item(item)
            except InvalidItem:
                items[index] = sanitize_json(item)
                encode_item(items[index], f"output[{index}]")
                response.output = [
                    *response.output[:index],
                    wrap_attributes(items[index]),
                    *response.output[index + 1 :],
                ]
            _validate_item(items[index], f"output[{index}]")
    except (InvalidItem, TypeError) as error:
        raise ModelBehaviorError(f"the model's answer is not a list of items: {error}") from error
    return response


def _validate_item(item: Item, where: str) -> None:
    kind = item.get("type")
    if not isinstance(kind, str) or not kind:
        raise InvalidItem(f"{where}.type", f"it must be a string with something in it, not {kind!r}")
    if kind != "message":
        return
    content = item.get("content")
    if not isinstance(content, list):
        raise InvalidItem(f"{where}.content", f"it must be a list of parts, not {type(content).__name__}")
    for index, part in enumerate(content):
        name = _TEXT_FIELDS.get(str(part.get("type"))) if isinstance(part, Mapping) else ""
        if name == "" or (name is not None and not isinstance(part.get(name), str)):
            raise InvalidItem(f"{where}.content[{index}]", f"{part!r} is not a part of a message")
