from servers import postgres_server, postgres_tables_url, postgres_url

__all__ = ["postgres_server", "postgres_tables_url", "postgres_url"]
