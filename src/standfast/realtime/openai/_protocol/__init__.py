"""The client side of OpenAI's realtime protocol, sans I/O."""
