"""Output items as dicts with attributes, and as plain dicts."""

import copy
import json
import pickle

import msgspec
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from standfast import ModelResponse, Usage
from standfast.base.items import decode_item, encode_item
from standfast.models import AttributeDict
from standfast.models.interface import as_item

MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}], "status": None}


def test_entries_are_attributes_and_the_dict_is_plain_json() -> None:
    raw = AttributeDict(MESSAGE)
    assert raw.content[0].text == "hi"
    assert raw.status is None
    assert raw == MESSAGE
    assert json.loads(json.dumps(raw)) == msgspec.json.decode(msgspec.json.encode(raw)) == MESSAGE
    assert decode_item(encode_item(raw)) == MESSAGE
    with pytest.raises(AttributeError, match="'message' has no 'name'"):
        _ = raw.name
    assert getattr(raw, "name", "default") == "default"


def test_copies_are_of_the_same_class() -> None:
    raw = AttributeDict(MESSAGE)
    for twin in (copy.deepcopy(raw), pickle.loads(pickle.dumps(raw)), copy.copy(raw)):
        assert twin == raw
        assert twin.content[0].text == "hi"
    assert type(raw.model_dump()["content"][0]) is dict


def test_items_are_converted_once_and_share_nothing_with_the_output() -> None:
    raw = AttributeDict(MESSAGE)
    answer = ModelResponse([raw], Usage(), "resp_1")
    item = answer.items[0]
    assert answer.to_input_items()[0] is item
    assert type(item["content"][0]) is dict
    raw.content[0]["text"] = "changed"
    assert item["content"][0]["text"] == "hi"


def test_an_object_of_the_providers_library_becomes_exactly_what_was_sent() -> None:
    sent = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "unknown": {"x": [1]}}
    assert as_item(ResponseFunctionToolCall.construct(**sent)) == sent
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": MESSAGE["content"]}
    assert as_item(ResponseOutputMessage.construct(**message)) == message
    created = ResponseFunctionToolCall(call_id="c", name="f", arguments="{}", type="function_call")
    assert as_item(created) == {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    with pytest.raises(TypeError, match="int"):
        as_item(3)
