"""The server process of a local model: loads the model, serves it on loopback, and exits with its parent.

It runs as a script and is never imported. The first line of its input is a JSON object with the options; it prints one
JSON line with the URL when the model is loaded.
"""

import json
import os
import select
import sys
from importlib import import_module
from typing import Any


def serve(options: dict[str, Any]) -> None:
    # The library may print to stdout; only the JSON line may reach the parent.
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    xllamacpp = import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path = options["path"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [options["api_key"]]
    params.n_ctx = options["context_size"] * options["parallel"]
    params.n_parallel = options["parallel"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.model_alias = {options["name"]}
    params.chat_template = options["template"]
    params.offline = True
    params.ui = False
    params.warmup = False
    params.endpoint_slots = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), file=stdout, flush=True)
    wait_for_parent_exit()


def wait_for_parent_exit() -> None:
    """Return when the parent closes stdin or exits: another process may hold the other end of the pipe."""
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 1):
            return


if __name__ == "__main__":
    serve(json.loads(sys.stdin.readline()))
    # There is nothing to save, and a response in progress has lost its reader.
    os._exit(0)
