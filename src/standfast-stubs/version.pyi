from standfast import __version__ as __version__
