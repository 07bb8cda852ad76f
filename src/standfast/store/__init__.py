"""The one durable store: :mod:`~holdfast.store.contract` says what a backend does, the others do it."""
