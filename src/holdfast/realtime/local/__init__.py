"""The server side of the realtime wire protocol, without a server: a pure engine, and what thinks and speaks for it."""
