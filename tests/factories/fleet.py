"""What the tests of fleets share."""

import importlib.util
from pathlib import Path

import pytest

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: run `make fleet`, which installs it"
)
SOON = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}
"""How the head notices within seconds that it does not hear of a node."""
LEAKS = pytest.mark.leaks("fd", "thread")
"""Of Ray's own, which stay until the driver leaves the cluster."""


def is_running(pid):
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
