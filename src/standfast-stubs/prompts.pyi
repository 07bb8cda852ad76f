from standfast.agents import DynamicPromptFunction as DynamicPromptFunction
from standfast.agents import GenerateDynamicPromptData as GenerateDynamicPromptData
from standfast.agents import Prompt as Prompt
