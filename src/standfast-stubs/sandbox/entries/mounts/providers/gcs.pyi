from standfast.sandbox import GCSMount as GCSMount
