"""The local model: a llama.cpp server process and its client."""
