"""A realtime server with fault injection."""
