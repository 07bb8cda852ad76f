"""Run the command line with ``python -m standfast``."""

from standfast.cli import main

main()
