"""Paused runs of openai-agents: read what it saved, and write what it can resume."""
