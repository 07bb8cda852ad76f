"""Settings of models, laid over each other."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import InvalidDeclaration, ModelRetryBackoffSettings, ModelRetrySettings, ModelSettings, Usage


def test_what_is_set_wins_and_the_rest_shows_through() -> None:
    base = ModelSettings(temperature=0.1, top_p=0.5, extra_args={"a": 1, "b": 1}, extra_headers={"x": "1"})
    found = base.resolve({"temperature": 0.9, "extra_args": {"b": 2}, "extra_headers": {"y": "1"}})
    assert found == ModelSettings(temperature=0.9, top_p=0.5, extra_args={"a": 1, "b": 2}, extra_headers={"y": "1"})
    assert base.temperature == 0.1
    assert base.extra_args == {"a": 1, "b": 1}


def test_nothing_over_them_leaves_them_as_they_are() -> None:
    settings = ModelSettings(temperature=0.1)
    assert settings.resolve(None) is settings


def test_retries_are_merged_field_by_field() -> None:
    def policy(context: Any) -> bool:
        return True

    base = ModelSettings(retry=ModelRetrySettings(2, {"initial_delay": 1.0}, policy))
    retry = base.resolve(ModelSettings(retry=ModelRetrySettings(backoff={"jitter": False}))).retry
    assert retry == ModelRetrySettings(2, ModelRetryBackoffSettings(1.0, jitter=False), policy)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"heat": 1}, "no setting 'heat'"),
        ({"temperature": "hot"}, r"ModelSettings\.temperature"),
        ({"temperature": True}, r"ModelSettings\.temperature"),
        ({"temperature": float("nan")}, r"ModelSettings\.temperature"),
        ({"timeout": 0}, r"ModelSettings\.timeout"),
        ({"retry": {"max_retries": -1}}, r"ModelRetrySettings\.max_retries"),
        ({"retry": {"policy": 3}}, "policy"),
        ({"retry": {"backoff": {"initial_delay": -1}}}, "initial_delay"),
        (3, "expected settings"),
    ],
)
def test_settings_that_make_no_sense_are_named(wrong: Any, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        ModelSettings().resolve(wrong)


def test_settings_are_stored_without_code_and_traced_without_secrets() -> None:
    settings = ModelSettings(
        retry=ModelRetrySettings(1, policy=lambda context: True), extra_headers={"key": "secret"}, temperature=0
    )
    stored = settings.to_json_dict()
    assert stored["retry"] == {"max_retries": 1, "backoff": None}
    assert ModelSettings.coerce(stored).retry == ModelRetrySettings(1)
    assert "secret" not in str(settings.to_traceable_dict())


def test_settings_are_stored_and_traced_as_the_peer_does() -> None:
    peer = pytest.importorskip("agents")
    given = {"temperature": 0.5, "metadata": {"a": "b"}, "extra_args": {"x": 1}, "tool_choice": "required"}
    ours, theirs = ModelSettings(**given), peer.ModelSettings(**given)
    assert ours.to_json_dict() == theirs.to_json_dict()
    assert ours.to_traceable_dict() == theirs.to_traceable_dict()


def test_a_request_becomes_an_entry_of_the_usage() -> None:
    usage = Usage()
    details: Any = {"cached_tokens": 2}
    usage.add(Usage(1, 3, details, 4, {"reasoning_tokens": 1}, 7))  # type: ignore[arg-type]
    usage.add(Usage(1, 1, output_tokens=1, total_tokens=2))
    assert (usage.requests, usage.total_tokens, usage.input_tokens_details.cached_tokens) == (2, 9, 2)
    assert usage.output_tokens_details.reasoning_tokens == 1
    assert [entry.total_tokens for entry in usage.request_usage_entries] == [7, 2]
    whole = Usage()
    whole.add(usage)
    assert whole == usage


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9))))
def test_usage_adds_up(parts: list[tuple[int, int, int]]) -> None:
    usage = Usage()
    for requests, into, out in parts:
        usage.add(Usage(requests, into, output_tokens=out, total_tokens=into + out))
    assert usage.requests == sum(part[0] for part in parts)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens == sum(a + b for _, a, b in parts)
