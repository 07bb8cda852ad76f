from standfast.sandbox.capabilities import ExecCommandTool as ExecCommandTool
from standfast.sandbox.capabilities import SandboxApplyPatchEditor as SandboxApplyPatchEditor
from standfast.sandbox.capabilities import SandboxApplyPatchTool as SandboxApplyPatchTool
from standfast.sandbox.capabilities import ViewImageTool as ViewImageTool
from standfast.sandbox.capabilities import WriteStdinTool as WriteStdinTool
from standfast.sandbox.capabilities.filesystem import ViewImageArgs as ViewImageArgs
from standfast.sandbox.capabilities.shell import ExecCommandArgs as ExecCommandArgs
from standfast.sandbox.capabilities.shell import WriteStdinArgs as WriteStdinArgs
