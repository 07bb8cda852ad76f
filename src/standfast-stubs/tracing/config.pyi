from standfast.tracing import TracingConfig as TracingConfig
