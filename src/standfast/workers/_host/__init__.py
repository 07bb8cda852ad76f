"""The host's side of a worker: processes, connection, protocol and output."""
