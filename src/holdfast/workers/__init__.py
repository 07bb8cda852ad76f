"""Worker sessions: isolated, persistent Python, forked in milliseconds.

Names are resolved on first use: a worker imports ``workers.wire`` only and pays for nothing else.
"""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "config": ["PoolConfig", "SandboxPolicy", "SessionConfig"],
    "errors": [
        "Cause",
        "ExecutionTimeout",
        "PoolBroken",
        "PoolExhausted",
        "RequestFailed",
        "SandboxUnavailable",
        "StartFailed",
        "WorkerDied",
        "WorkerError",
    ],
    "pool": ["SessionPool"],
    "probe": ["SandboxReport", "probe_sandbox"],
    "result": [
        "Checkpoint",
        "ExecutionResult",
        "Interrupted",
        "Restored",
        "SessionInfo",
        "SnapshotPoint",
        "WorkerUsage",
    ],
    "servers": ["fork_server"],
    "session": ["WorkerSession"],
    "states": ["SessionState"],
    "tool": ["PythonSessions", "Ran", "conversation", "python_function"],
    "wire.frames": ["FrameTooLarge"],
    "wire.messages": [
        "AckMessage",
        "CancelMessage",
        "CheckpointMessage",
        "CompletionMessage",
        "DisplayMessage",
        "ErrorMessage",
        "ExecuteMessage",
        "HeartbeatMessage",
        "HelloMessage",
        "InputMessage",
        "InputResponseMessage",
        "InterruptMessage",
        "Message",
        "NamespaceEntry",
        "NamespaceMessage",
        "OutputMessage",
        "ReadyMessage",
        "RestoreMessage",
        "ResultMessage",
        "ShutdownMessage",
        "SnapshotMessage",
        "Usage",
    ],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
