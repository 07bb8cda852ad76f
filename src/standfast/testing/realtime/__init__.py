"""A realtime server with fault injection, for tests."""
