"""Copy conversations that other frameworks stored into a store of standfast."""
