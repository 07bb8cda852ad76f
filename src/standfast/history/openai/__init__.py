"""Sessions that OpenAI's servers keep: conversations and compaction."""
