"""Where the diffs of a model are applied."""

from typing import Any

import pytest

SOURCE = "class Target\n    def helper():\n        pass\n\n    def desired():\n        pass\n"


@pytest.mark.parametrize(
    "anchors",
    [
        ["@@ class Target", "@@     def missing():"],
        ["@@ class Missing", "@@     def desired():"],
        ["@@ class Missing", "@@"],
    ],
)
def test_of_several_anchors_each_must_be_found(lib: Any, anchors: list[str]) -> None:
    with pytest.raises(ValueError, match="Anchor"):
        lib.apply_diff(SOURCE, "\n".join([*anchors, "-        pass", "+        return 1"]))


def test_a_single_anchor_is_a_hint(lib: Any) -> None:
    assert lib.apply_diff("a\nb\n", "@@ missing\n-b\n+B") == "a\nB\n"


def test_anchors_lead_to_the_place_behind_them(lib: Any) -> None:
    diff = "@@ class Target\n@@     def desired():\n-        pass\n+        return 1"
    assert lib.apply_diff(SOURCE, diff) == SOURCE.removesuffix("pass\n") + "return 1\n"


def test_lines_of_an_empty_file_end_as_those_of_the_diff(lib: Any) -> None:
    assert lib.apply_diff("", "@@\r\n+hello\r\n+world") == "hello\r\nworld\r\n"
