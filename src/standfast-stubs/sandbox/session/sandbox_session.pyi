from standfast.sandbox import SandboxSession as SandboxSession
