from factories.mcp import log, long_timeouts, plain_http, sdk_servers, short_timeouts

__all__ = ["log", "long_timeouts", "plain_http", "sdk_servers", "short_timeouts"]
