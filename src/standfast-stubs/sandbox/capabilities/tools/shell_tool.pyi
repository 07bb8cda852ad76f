from standfast.sandbox.capabilities import ExecCommandTool as ExecCommandTool
from standfast.sandbox.capabilities import WriteStdinTool as WriteStdinTool
from standfast.sandbox.capabilities.shell import ExecCommandArgs as ExecCommandArgs
from standfast.sandbox.capabilities.shell import WriteStdinArgs as WriteStdinArgs
