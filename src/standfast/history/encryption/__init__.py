"""Encrypted sessions: keys, the record codec and the envelope for foreign sessions."""
