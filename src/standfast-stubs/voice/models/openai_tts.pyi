from standfast.voice import OpenAITTSModel as OpenAITTSModel
