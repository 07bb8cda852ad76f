from standfast.sandbox.types import PtyExecUpdate as PtyExecUpdate
