"""Words that every part shares: errors, items, ids, time. No asyncio, no input or output."""
