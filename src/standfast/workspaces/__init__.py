"""Workspaces: the variables and files of a conversation's Python, kept in a store."""
