from standfast.models import OpenAIProvider as OpenAIProvider
from standfast.models.openai.provider import DEFAULT_MODEL as DEFAULT_MODEL
