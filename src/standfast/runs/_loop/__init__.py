"""The steps that the driver executes; private to :mod:`standfast.runs`."""
