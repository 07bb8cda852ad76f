"""The host's side of a worker: processes, connection, protocol, output, and the parts of a session."""
