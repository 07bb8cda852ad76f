"""The measured libraries, each in its own process, and those of others in their own environment."""
