from standfast.tracing import BackendSpanExporter as BackendSpanExporter
from standfast.tracing import BatchTraceProcessor as BatchTraceProcessor
from standfast.tracing import ConsoleSpanExporter as ConsoleSpanExporter
from standfast.tracing import TracingExporter as TracingExporter
from standfast.tracing import TracingProcessor as TracingProcessor
from standfast.tracing import default_exporter as default_exporter
from standfast.tracing import default_processor as default_processor
