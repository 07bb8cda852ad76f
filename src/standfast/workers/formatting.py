"""Moved to ``standfast.workers.results``; this module goes with its last import."""

from standfast.workers.results import EncodedImage, as_text, extract_images

__all__ = ["EncodedImage", "as_text", "extract_images"]
