from standfast.tracing import Trace as Trace
from standfast.tracing.spans import NoOpTrace as NoOpTrace
