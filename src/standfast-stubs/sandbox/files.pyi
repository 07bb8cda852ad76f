from standfast.sandbox import EntryKind as EntryKind
from standfast.sandbox import FileEntry as FileEntry
