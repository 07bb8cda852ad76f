"""Durable agent runs, approvals, session memory, realtime voice and sandboxed Python workers on one store.

Public names are imported on first use, so that importing the package is cheap.
"""

import sys

from standfast.base.lazy import ModulePathFinder, attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)

if ModulePathFinder not in sys.meta_path:
    sys.meta_path.append(ModulePathFinder)
