from standfast.sandbox import BoxMount as BoxMount
