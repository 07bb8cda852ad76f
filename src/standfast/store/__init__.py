"""The one durable store: :mod:`~standfast.store.contract` says what a backend does, the others do it."""
