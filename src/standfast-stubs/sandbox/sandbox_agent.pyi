from standfast.sandbox import SandboxAgent as SandboxAgent
