from standfast.tracing import TracingProcessor as TracingProcessor
