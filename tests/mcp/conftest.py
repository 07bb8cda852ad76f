from shops import journal

__all__ = ["journal"]
