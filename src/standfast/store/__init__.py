"""Durable storage: the interface of a backend and the backends for memory, SQLite, SQL servers and Redis."""
