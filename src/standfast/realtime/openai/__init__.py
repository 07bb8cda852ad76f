"""The client side of the realtime wire protocol: a core without I/O, and the connections around it."""
