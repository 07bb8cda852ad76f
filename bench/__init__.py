"""The measuring stick: standfast side by side with its peers, in one run."""
