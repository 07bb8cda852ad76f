"""Workers for other agent frameworks: their sandboxes and workspaces, and the run that a call belongs to."""
