from standfast.agents import AgentToolInvocation as AgentToolInvocation
from standfast.runs import RunResult as RunResult
from standfast.runs import RunResultStreaming as RunResultStreaming
from standfast.runs.result import RunResultBase as RunResultBase
