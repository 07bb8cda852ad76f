from standfast.sandbox import BaseEntry as BaseEntry
from standfast.sandbox.workspace_paths import resolve_workspace_path as resolve_workspace_path
