"""The store contract over any SQL database, written once as plain synchronous functions.

A connection is a :class:`~standfast.store.sql.connection.Connection`: standard sqlite3 on its own thread, or
an SQLAlchemy connection inside ``run_sync``.
"""
