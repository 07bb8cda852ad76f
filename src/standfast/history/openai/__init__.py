"""Sessions that use the OpenAI API: conversations, and compaction by the Responses API."""
