"""Measures a Jupyter kernel, inside the peers' own environment; prints JSON."""

import json
import statistics
import sys
import time

from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found]


def run(client, code):  # type: ignore[no-untyped-def]
    """Execute and wait for the reply and for idle, as a client must to have all output. Returns bytes printed."""
    request = client.execute(code)
    printed = 0
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            printed += len(message["content"]["text"])
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    client.get_shell_msg(timeout=60)
    return printed


def main(starts: int, calls: int, lines: int) -> None:
    started, manager, client = [], None, None
    for _ in range(starts):
        if manager is not None:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        begin = time.perf_counter()
        manager, client = start_new_kernel(kernel_name="python3")
        started.append(time.perf_counter() - begin)
    for _ in range(20):
        run(client, "1+1")
    trips = []
    for _ in range(calls):
        begin = time.perf_counter()
        run(client, "1+1")
        trips.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    printed = run(client, f"for _ in range({lines}): print('y' * 99)")
    rate = printed / 1e6 / (time.perf_counter() - begin)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    print(
        json.dumps(
            {"start": statistics.median(started), "trip": statistics.median(trips), "rate": rate, "printed": printed}
        )
    )


main(*map(int, sys.argv[1:4]))
