"""The worker's side. Imports the standard library, msgspec and ``workers.wire``; nothing of the host."""
