"""Session classes with the constructors of openai-agents."""
