"""A folder as ``adk api_server`` expects it."""

from . import agent as agent
