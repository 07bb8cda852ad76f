"""Variables are pickled in groups that share objects, and manifests are checked before they are used."""

import os
import sys
import types

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.workers import Content, InvalidManifest, VariableGroup, WorkspaceFile, WorkspaceManifest
from standfast.workers.child import variable_groups

pytest.importorskip("cloudpickle")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=99)
)


@st.composite
def namespaces(draw):
    """Variables whose values are lists and dictionaries that refer to each other in any way."""
    nodes = [draw(st.sampled_from([list, dict]))() for _ in range(draw(st.integers(1, 8)))]
    for node in nodes:
        for number in range(draw(st.integers(0, 4))):
            value = draw(st.sampled_from(nodes) | SCALARS)
            node.append(value) if isinstance(node, list) else node.update({str(number): value})
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
    return {name: draw(st.sampled_from(nodes) | SCALARS) for name in names}


def describe(values):
    """Return values with a number for each list and dictionary, so that equal descriptions mean equal graphs."""
    numbers = {}

    def visit(value):
        if not isinstance(value, list | dict):
            return repr(value)
        if id(value) in numbers:
            return numbers[id(value)]
        numbers[id(value)] = len(numbers)
        parts = value if isinstance(value, list) else [part for pair in value.items() for part in pair]
        return type(value).__name__, [visit(part) for part in parts]

    return [(name, visit(values[name])) for name in sorted(values)]


@pytest.fixture(autouse=True)
def prepared():
    variable_groups.prepare()


def copy(values):
    """Pickle values in groups and load them. Returns the groups of names, and the loaded values."""
    unkept = {}
    groups = list(variable_groups.pickle_groups(values, values, unkept))
    assert unkept == {}
    loaded = {}
    for group in groups:
        buffers = tuple(bytearray(buffer) for buffer in group.buffers)
        loaded |= zip(group.names, variable_groups.load_group(group.data, buffers), strict=True)
    return [group.names for group in groups], loaded


@settings(deadline=None)
@given(namespaces())
def test_objects_are_shared_after_as_before(values):
    groups, loaded = copy(values)
    assert describe(loaded) == describe(values)
    assert sorted(name for names in groups for name in names) == sorted(values)


@settings(deadline=None)
@given(namespaces())
def test_pickles_of_unchanged_values_are_the_same_bytes(values):
    first, second = (list(variable_groups.pickle_groups(values, values, {})) for _ in range(2))
    assert [(group.names, group.data) for group in first] == [(group.names, group.data) for group in second]


def test_variables_that_share_nothing_are_groups_of_their_own():
    shared = [1]
    groups, _ = copy({"a": shared, "b": {"inner": shared}, "c": [1], "d": 1, "e": "text", "f": ("text",)})
    assert sorted(groups) == [("a", "b"), ("c",), ("d",), ("e",), ("f",)]


def test_arrays_keep_their_memory_apart_and_dtypes_join_nothing():
    numpy = pytest.importorskip("numpy")
    values = {"a": numpy.arange(100_000.0), "b": numpy.arange(50_000.0), "small": numpy.arange(3)}
    groups = list(variable_groups.pickle_groups(values, values, {}))
    assert [(group.names, len(group.buffers), len(group.data) < 1000) for group in groups] == [
        (("a",), 1, True), (("b",), 1, True), (("small",), 0, True),
    ]  # fmt: skip


def test_what_cannot_be_pickled_is_named_and_the_rest_is_kept():
    unkept = {}
    with open(os.devnull) as file:
        values = {"ok": 1, "generator": (n for n in ()), "file": file}
        groups = list(variable_groups.pickle_groups(values, values, unkept))
    assert [group.names for group in groups] == [("ok",)]
    assert set(unkept) == {"generator", "file"}


def test_functions_read_the_namespace_they_are_loaded_into(monkeypatch):
    module = types.ModuleType("__main__")
    exec(
        "n = 1\ndef read(): return n\ndef adder(m):\n    def add(): return n + m\n    return add\nadd = adder(5)",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "__main__", module)
    names = {name: vars(module)[name] for name in ("read", "add")}
    groups = list(variable_groups.pickle_groups(vars(module), names, {}))
    other = types.ModuleType("__main__")
    other.n = 10
    monkeypatch.setitem(sys.modules, "__main__", other)
    read, add = (variable_groups.load_group(group.data, ())[0] for group in groups)
    assert (read(), add()) == (10, 15)
    other.n = 20
    assert (read(), add()) == (20, 25)


DIGEST = b"d" * 32
GOOD = WorkspaceManifest(
    python="3.11",
    imports={"np": "numpy"},
    contents=(Content(10, (DIGEST,)),),
    groups=(
        VariableGroup(names=("a", "b"), content=0, size=6),
        VariableGroup(names=("c",), content=0, offset=6, size=4),
    ),
    files=(
        WorkspaceFile(path="d", kind="directory", mode=0o755),
        WorkspaceFile(path="d/f.txt", content=Content((1 << 20) + 1, (DIGEST, DIGEST))),
    ),
    unkept={"g": "a generator"},
    size=10 + (1 << 20) + 1,
)


def test_a_manifest_is_decoded_as_it_was_encoded():
    assert WorkspaceManifest.decode(GOOD.encode()) == GOOD
    assert GOOD.digests == {DIGEST}


@settings(deadline=None)
@given(st.data())
def test_a_manifest_that_was_changed_is_refused(data):
    encoded = bytearray(GOOD.encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidManifest):
        WorkspaceManifest.decode(bytes(encoded))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(InvalidManifest):
        WorkspaceManifest.decode(GOOD.encode()[:cut])


@settings(deadline=None)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_anything_else_than_a_manifest_is_refused(value):
    with pytest.raises(InvalidManifest):
        WorkspaceManifest.decode_body(msgspec.msgpack.encode(value))


def with_files(*paths, **options):
    return {"files": tuple(WorkspaceFile(path=path, **options) for path in paths), "size": 10}


HOSTILE = {
    "parent": with_files("../up"),
    "inner parent": with_files("a/../../up"),
    "absolute": with_files("/etc/passwd"),
    "empty": with_files(""),
    "dot": with_files("./a"),
    "double slash": with_files("a//b"),
    "null byte": with_files("a\0b"),
    "too deep": with_files("/".join("a" * 80)),
    "too long a name": with_files("x" * 256),
    "duplicate": with_files("a", "a"),
    "below a file": with_files("a/b", "a"),
    "a set-user-id bit": with_files("a", mode=0o4755),
    "a directory with content": {
        "files": (WorkspaceFile(path="a", kind="directory", content=Content(3, (DIGEST,))),), "size": 13,
    },
    "too few chunks": {"contents": (Content((1 << 20) + 1, (DIGEST,)),)},
    "too many chunks": {"contents": (Content(10, (DIGEST, DIGEST)),)},
    "a negative size": {"contents": (Content(-10, ()),)},
    "a short digest": {"contents": (Content(10, (b"short",)),)},
    "a wrong total": {"size": 3},
    "a missing content": {"groups": (VariableGroup(names=("a",), content=7),)},
    "outside of its content": {"groups": (VariableGroup(names=("a",), content=0, offset=8, size=3),)},
    "a negative offset": {"groups": (VariableGroup(names=("a",), content=0, offset=-1, size=3),)},
    "a variable twice": {"groups": (VariableGroup(names=("a", "a"), content=0),)},
    "a variable and an import": {"groups": (VariableGroup(names=("np",), content=0),)},
    "an endless name": {"unkept": {"x" * 10_000: "reason"}},
    "an endless reason": {"unkept": {"x": "reason" * 10_000}},
}  # fmt: skip


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_no_worker_may_restore_is_refused(changes):
    with pytest.raises(InvalidManifest) as caught:
        WorkspaceManifest.decode(msgspec.structs.replace(GOOD, **changes).encode())
    assert caught.value.kind in ("unsafe", "damaged")


@pytest.mark.parametrize("kind", ["symlink", "device", "fifo", "socket"])
def test_a_manifest_has_no_links_and_devices(kind):
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(GOOD))
    raw["files"][0]["kind"] = kind
    with pytest.raises(InvalidManifest):
        WorkspaceManifest.decode_body(msgspec.msgpack.encode(raw))


def test_views_share_the_memory_of_their_arrays_after_as_before():
    numpy = pytest.importorskip("numpy")
    rows, data = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), bytearray(b"abcdef")
    large = numpy.arange(90_000.0)
    objects = numpy.array([[1, []], [3, 4]], dtype=object)
    values = {
        "rows": rows, "column": rows[:, 1], "back": rows.T[::-1], "data": data, "codes": numpy.frombuffer(data, "u1"),
        "large": large, "every": large[::3], "cells": objects, "turned": objects.T,
    }  # fmt: skip
    for _ in range(3):  # a loaded array is a view of its buffer
        groups = list(variable_groups.pickle_groups({}, values, {}))
        assert [group.names for group in groups] == [
            ("rows", "column", "back"), ("data", "codes"), ("large", "every"), ("cells", "turned"),
        ]  # fmt: skip
        values = {}
        for group in groups:
            memory = tuple(variable_groups.ArrayMemory(buffer) for buffer in group.buffers)
            values |= zip(group.names, variable_groups.load_group(group.data, memory), strict=True)
        values["column"][0] += 5
        values["data"][0] += 1
        values["every"][1] += 7
        values["turned"][0, 1] += 1
    assert values["rows"].tolist() == [[0, 16, 2], [3, 4, 5]]
    assert values["back"].tolist() == [[2, 5], [16, 4], [0, 3]]
    assert values["codes"].tobytes() == values["data"] == b"dbcdef"
    assert values["large"][3] == 24
    assert values["cells"].tolist() == [[1, []], [6, 4]]


def test_frames_that_copy_on_write_share_nothing():
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": numpy.arange(20_000.0), "y": numpy.arange(20_000.0)})
    values = {"frame": frame, "part": frame["x"]}
    [one, two] = variable_groups.pickle_groups({}, values, {})
    assert (one.names, two.names) == (("frame",), ("part",))


def test_memory_views_are_named():
    unkept = {}
    assert list(variable_groups.pickle_groups({}, {"view": memoryview(b"abc")}, unkept)) == []
    assert "memory view" in unkept["view"]
