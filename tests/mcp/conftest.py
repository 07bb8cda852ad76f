from shops import journal, mall

__all__ = ["journal", "mall"]
