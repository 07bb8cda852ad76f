"""The client's side of the realtime protocol, without I/O."""
