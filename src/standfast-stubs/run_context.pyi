from standfast.agents import AgentHookContext as AgentHookContext
from standfast.agents import RunContextWrapper as RunContextWrapper
from standfast.agents import TContext as TContext
