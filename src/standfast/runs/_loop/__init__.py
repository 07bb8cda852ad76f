"""The steps that the driver performs."""
