"""Run one program of a tree as the main module: ``python -m compat.tree_process agents|standfast MODULE``."""

import importlib
import random
import runpy
import sys
import warnings


def main() -> None:
    library, module = sys.argv[1:]
    warnings.simplefilter("ignore")
    random.seed(0)  # programs that choose by chance choose the same on both libraries
    importlib.import_module(f"{library}.tracing").set_trace_processors([])
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
