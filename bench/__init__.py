"""The measuring stick: holdfast side by side with its peers, in one run."""
