"""Calls of tools: the only place where one is judged and made. Text runs and realtime sessions share it."""
