"""Output of commands, cut for a model."""

_CHARACTERS_PER_TOKEN = 4
MAX_CHARACTERS = 400_000


def truncate_output(output: bytes, max_tokens: int | None) -> tuple[bytes, int | None]:
    """Return the beginning and the end of an output that is too long, and its estimated number of tokens.

    The number is None if nothing was cut. A token is taken for four characters.
    """
    text = output.decode(errors="replace")
    limit = MAX_CHARACTERS if max_tokens is None else max_tokens * _CHARACTERS_PER_TOKEN
    if len(text) <= limit:
        return output, None
    total = -(-len(text) // _CHARACTERS_PER_TOKEN)
    head = limit // 2
    tail = limit - head
    cut = -(-(len(text) - limit) // _CHARACTERS_PER_TOKEN)
    lines = text.count("\n")
    shown = f"Total output lines: {lines}\n\n{text[:head]}…{cut} tokens truncated…{text[len(text) - tail :]}"
    return shown.encode(), total
