"""OpenAI's Responses and Chat Completions APIs."""
