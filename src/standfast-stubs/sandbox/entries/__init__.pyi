from standfast.sandbox import BaseEntry as BaseEntry
from standfast.sandbox import Dir as Dir
from standfast.sandbox import File as File
from standfast.sandbox import GitRepo as GitRepo
from standfast.sandbox import LocalDir as LocalDir
from standfast.sandbox import LocalFile as LocalFile
from standfast.sandbox.workspace_paths import resolve_workspace_path as resolve_workspace_path
