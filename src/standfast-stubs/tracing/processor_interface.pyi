from standfast.tracing import TracingExporter as TracingExporter
from standfast.tracing import TracingProcessor as TracingProcessor
