"""Who sends a request, and what that role may do."""
