"""Model settings: overrides, validation, storage; and usage."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import InvalidDeclaration, ModelRetryBackoffSettings, ModelRetrySettings, ModelSettings, Usage


def test_values_that_are_set_override_and_others_are_kept() -> None:
    base = ModelSettings(temperature=0.1, top_p=0.5, extra_args={"a": 1, "b": 1}, extra_headers={"x": "1"})
    resolved = base.resolve({"temperature": 0.9, "extra_args": {"b": 2}, "extra_headers": {"y": "1"}})
    assert resolved == ModelSettings(temperature=0.9, top_p=0.5, extra_args={"a": 1, "b": 2}, extra_headers={"y": "1"})
    assert base.temperature == 0.1
    assert base.extra_args == {"a": 1, "b": 1}


def test_no_override_returns_the_same_settings() -> None:
    settings = ModelSettings(temperature=0.1)
    assert settings.resolve(None) is settings


def test_retries_are_merged_field_by_field() -> None:
    def policy(context: Any) -> bool:
        return True

    base = ModelSettings(retry=ModelRetrySettings(2, {"initial_delay": 1.0}, policy))
    retry = base.resolve(ModelSettings(retry=ModelRetrySettings(backoff={"jitter": False}))).retry
    assert retry == ModelRetrySettings(2, ModelRetryBackoffSettings(1.0, jitter=False), policy)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"heat": 1}, "unknown settings: 'heat'"),
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
def test_an_invalid_setting_is_named_in_the_error(wrong: Any, problem: str) -> None:
    with pytest.raises(InvalidDeclaration, match=problem):
        ModelSettings().resolve(wrong)


def test_settings_are_stored_without_code_and_traced_without_secrets() -> None:
    settings = ModelSettings(
        retry=ModelRetrySettings(1, policy=lambda context: True), extra_headers={"key": "secret"}, temperature=0
    )
    stored = settings.to_json_dict()
    assert stored["retry"] == {"max_retries": 1, "backoff": None}
    assert ModelSettings.coerce(stored).retry == ModelRetrySettings(1)
    assert "secret" not in str(settings.to_traceable_dict())


def test_settings_are_stored_and_traced_like_those_of_openai_agents() -> None:
    openai_agents = pytest.importorskip("agents")
    fields = {"temperature": 0.5, "metadata": {"a": "b"}, "extra_args": {"x": 1}, "tool_choice": "required"}
    ours, theirs = ModelSettings(**fields), openai_agents.ModelSettings(**fields)
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
    total = Usage()
    total.add(usage)
    assert total == usage


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9))))
def test_usage_adds_up(parts: list[tuple[int, int, int]]) -> None:
    usage = Usage()
    for requests, into, out in parts:
        usage.add(Usage(requests, into, output_tokens=out, total_tokens=into + out))
    assert usage.requests == sum(part[0] for part in parts)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens == sum(a + b for _, a, b in parts)
