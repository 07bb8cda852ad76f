from factories.mcp import log, plain_http, sdk_servers, short_timeouts

__all__ = ["log", "plain_http", "sdk_servers", "short_timeouts"]
