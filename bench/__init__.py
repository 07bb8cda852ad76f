"""Benchmarks: standfast compared with its competitors in one run."""
