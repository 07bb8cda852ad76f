from standfast.sandbox.types import MaterializationResult as MaterializationResult
from standfast.sandbox.types import MaterializedFile as MaterializedFile
