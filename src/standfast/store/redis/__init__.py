"""The Redis backend: histories and leases, one server-side script per commit."""
