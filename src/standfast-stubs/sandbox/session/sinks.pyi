from standfast.sandbox import CallbackSink as CallbackSink
from standfast.sandbox import ChainedSink as ChainedSink
from standfast.sandbox import EventSink as EventSink
from standfast.sandbox import HttpProxySink as HttpProxySink
from standfast.sandbox import JsonlOutboxSink as JsonlOutboxSink
from standfast.sandbox import WorkspaceJsonlSink as WorkspaceJsonlSink
from standfast.sandbox.event_sinks import SandboxSessionBoundSink as SandboxSessionBoundSink
