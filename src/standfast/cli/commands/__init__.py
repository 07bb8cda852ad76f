"""The commands, one module per group; modules with an underscore are shared by them."""
