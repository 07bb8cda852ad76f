from standfast.models import AnyLLMModel as AnyLLMModel
