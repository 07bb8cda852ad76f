"""The relational implementation of the store, as synchronous functions over any SQL database.

A connection is a :class:`~standfast.store.sql.connection.DatabaseConnection`: a standard sqlite3 connection on its own
thread, or an SQLAlchemy connection inside ``run_sync``.
"""
