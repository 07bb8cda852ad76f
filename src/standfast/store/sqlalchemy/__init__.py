"""The backend for SQL servers through SQLAlchemy; on PostgreSQL a commit is one statement."""
