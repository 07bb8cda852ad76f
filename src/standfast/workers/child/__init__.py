"""The code that runs in worker processes. It imports the standard library, msgspec and ``workers.wire`` only."""
