"""``python -m standfast`` is ``standfast``."""

from standfast.cli import main

main()
