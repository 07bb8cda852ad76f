"""Histories and leases in Redis, one server-side script per commit."""
