from standfast.sandbox.capabilities import ViewImageTool as ViewImageTool
from standfast.sandbox.capabilities.filesystem import ViewImageArgs as ViewImageArgs
