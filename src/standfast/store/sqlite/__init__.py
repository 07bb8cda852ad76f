"""The embedded backend: one SQLite file through the standard library."""
