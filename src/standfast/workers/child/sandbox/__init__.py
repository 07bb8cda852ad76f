"""The sandbox that a worker enters before it runs code."""
