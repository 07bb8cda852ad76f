"""Encrypted sessions: keys, the record codec, and envelopes for third-party sessions."""
