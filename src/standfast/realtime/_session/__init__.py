"""The parts of a realtime session."""
