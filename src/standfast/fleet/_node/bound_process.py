"""The command line, in a process that ends with its parent: ``bound_process PARENT ARGUMENTS...``.

Ray ends an actor without asking it. A replica that outlived its actor would be replaced and go on.
"""

import os
import signal
import sys

from standfast.workers.child.sandbox.syscalls import PR_SET_PDEATHSIG, prctl


def end_with_parent(parent: int) -> None:
    """Have this process get SIGTERM when ``parent`` ends, or now if it has; Linux only."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    from standfast.cli import main

    main()
