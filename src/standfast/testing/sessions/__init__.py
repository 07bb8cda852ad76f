"""The contract suite for sessions."""
