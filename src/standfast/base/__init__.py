"""Definitions that all packages share: errors, items, ids, time. No asyncio, no input or output."""
