"""The embedded model: a llama.cpp server process and its client."""
