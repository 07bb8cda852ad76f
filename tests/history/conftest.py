from sealing_kit import backend, file

__all__ = ["backend", "file"]
