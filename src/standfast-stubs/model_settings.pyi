from standfast.agents import MCPToolChoice as MCPToolChoice
from standfast.agents import ModelSettings as ModelSettings
from standfast.agents.model_settings import ModelRetryBackoffInput as ModelRetryBackoffInput
from standfast.agents.model_settings import ToolChoice as ToolChoice
