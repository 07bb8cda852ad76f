"""The pure core of a run: state, steps and the transitions between them."""
