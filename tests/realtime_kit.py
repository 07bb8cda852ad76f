"""The former place of :mod:`factories.realtime`."""

from factories.realtime import *  # noqa: F403
