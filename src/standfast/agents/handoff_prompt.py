"""Words for the instructions of agents that hand off to each other."""

RECOMMENDED_PROMPT_PREFIX = (
    "# Working together\n"
    "You are one of several agents that share this conversation. Each has instructions and tools of its own. To pass"
    " the conversation on to an agent that is better suited, call the function for it, usually named"
    " `transfer_to_<agent_name>`. The user talks to all of you as if you were one: pass the conversation on without"
    " announcing or mentioning it.\n"
)


def prompt_with_handoff_instructions(prompt: str) -> str:
    """Return the instructions with an explanation of handoffs before them."""
    return f"{RECOMMENDED_PROMPT_PREFIX}\n{prompt}"
