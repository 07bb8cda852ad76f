"""Realtime models that speak OpenAI's realtime protocol: a sans-I/O client and the connections around it."""
