"""What the tests of fleets share."""

import importlib.util

import pytest

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: run `make fleet`, which installs it"
)
LEAKS = pytest.mark.leaks("fd", "thread")
"""Of Ray's own, which stay until the driver leaves the cluster."""
