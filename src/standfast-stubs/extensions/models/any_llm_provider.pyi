from standfast.models import AnyLLMProvider as AnyLLMProvider
from standfast.models.any_llm import DEFAULT_MODEL as DEFAULT_MODEL
