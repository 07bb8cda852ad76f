"""Who keeps a conversation: the run itself, a session, or the provider. Only ever one of them."""

from typing import Any

from standfast.agents.errors import UserError
from standfast.runs.core.state import (
    ConversationMode,
    InlineConversation,
    ServerConversation,
    SessionConversation,
    State,
)

SESSION_ATTRIBUTES = ("session_id", "get_items", "add_items", "pop_item", "clear_session")


def make_conversation(
    conversation_id: str | None, previous_response_id: str | None, auto_previous_response_id: bool
) -> ConversationMode:
    """The conversation that a program's arguments describe."""
    if conversation_id is not None and (previous_response_id is not None or auto_previous_response_id):
        raise UserError("a conversation_id cannot be used together with a previous_response_id")
    if conversation_id is None and previous_response_id is None and not auto_previous_response_id:
        return InlineConversation()
    return ServerConversation(conversation_id, previous_response_id, auto=auto_previous_response_id)


def get_conversation_key(state: State) -> str:
    """What tools may keep things under, from run to run where there is more than this run."""
    kept = state.conversation
    if isinstance(kept, SessionConversation):
        return kept.session_id
    if isinstance(kept, ServerConversation) and kept.conversation_id is not None:
        return kept.conversation_id
    return state.run_id


def check_session(state: State, session: Any) -> None:
    """Refuse a session for a conversation that somebody else keeps, and to go on without the one that keeps it."""
    if session is None:
        if isinstance(state.conversation, SessionConversation) and not state.ended:
            raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: give it that session")
        return
    missing = [name for name in SESSION_ATTRIBUTES if not hasattr(session, name)]
    if missing:
        raise UserError(f"{session!r} is not a session: it has no {', '.join(missing)}")
    if isinstance(state.conversation, ServerConversation):
        raise UserError(
            "a session cannot be used together with conversation_id, previous_response_id or "
            "auto_previous_response_id: the provider keeps that conversation already"
        )
    if isinstance(state.conversation, SessionConversation) and state.conversation.session_id != session.session_id:
        raise UserError(
            f"this run belongs to the session {state.conversation.session_id!r}, not to {session.session_id!r}"
        )
    if state.taken and isinstance(state.conversation, InlineConversation):
        raise UserError("this run began without a session; it cannot continue in one")
