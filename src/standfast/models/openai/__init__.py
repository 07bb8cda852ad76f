"""Models for OpenAI's Responses and Chat Completions APIs."""
