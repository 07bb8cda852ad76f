"""Server databases through SQLAlchemy, and PostgreSQL with one statement per commit."""
