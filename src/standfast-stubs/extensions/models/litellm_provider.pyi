from standfast.models import LitellmProvider as LitellmProvider
from standfast.models.litellm import DEFAULT_MODEL as DEFAULT_MODEL
