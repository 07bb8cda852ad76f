"""Session classes with the same constructors as in openai-agents."""
