from standfast.tracing import TraceCtxManager as TraceCtxManager
