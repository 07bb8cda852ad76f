from standfast.tracing import Trace as Trace
