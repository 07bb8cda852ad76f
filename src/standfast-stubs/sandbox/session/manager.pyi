from standfast.sandbox import Instrumentation as Instrumentation
