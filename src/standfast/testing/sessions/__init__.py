"""The contract suites for sessions."""
