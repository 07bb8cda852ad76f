"""Calls: realtime sessions behind a WebSocket that may be lost and made again."""
