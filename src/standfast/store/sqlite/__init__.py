"""The embedded store: one SQLite file through the standard library."""
