from factories.worker_fixtures import config, locked, readable_python, sandboxed, session, start

__all__ = ["config", "locked", "readable_python", "sandboxed", "session", "start"]
