"""The contract suite for store backends."""
