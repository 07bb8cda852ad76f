"""The process of a local model: loads it, serves it on loopback, and ends when its parent does.

Run as a script, not imported. It is told what to do in one JSON argument, and says where it listens in one JSON line.
"""

import json
import os
import select
import sys
from importlib import import_module
from typing import Any


def serve(options: dict[str, Any]) -> None:
    # The library may print; only our line may reach the parent.
    answer = os.fdopen(os.dup(1), "w")
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
    print(json.dumps({"url": server.listening_address}), file=answer, flush=True)
    wait_for_parent_exit()


def wait_for_parent_exit() -> None:
    """Return when the parent closes our input, or is gone: somebody else may hold the other end of the pipe."""
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 1):
            return


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
    # There is nothing to save, and an answer that is being written has lost its reader.
    os._exit(0)
