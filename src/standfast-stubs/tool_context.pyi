from standfast.agents import ToolContext as ToolContext
