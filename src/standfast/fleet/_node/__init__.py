"""What crosses the network between a pool and the nodes: bytes and plain data."""
