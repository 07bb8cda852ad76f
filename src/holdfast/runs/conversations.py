"""Who keeps a conversation: the run itself, a session, or the provider. Only ever one of them."""

from typing import Any

from holdfast.agents.errors import UserError
from holdfast.runs.state import Conversation, Inline, InSession, OnServer, State

SESSION = ("session_id", "get_items", "add_items", "pop_item", "clear_session")


def conversation_of(
    conversation_id: str | None, previous_response_id: str | None, auto_previous_response_id: bool
) -> Conversation:
    """The conversation that a program's arguments describe."""
    if conversation_id is not None and (previous_response_id is not None or auto_previous_response_id):
        raise UserError("a conversation_id cannot be used together with a previous_response_id")
    if conversation_id is None and previous_response_id is None and not auto_previous_response_id:
        return Inline()
    return OnServer(conversation_id, previous_response_id, auto=auto_previous_response_id)


def conversation_key(state: State) -> str:
    """What tools may keep things under, from run to run where there is more than this run."""
    kept = state.conversation
    if isinstance(kept, InSession):
        return kept.session_id
    if isinstance(kept, OnServer) and kept.conversation_id is not None:
        return kept.conversation_id
    return state.run_id


def check_owner(state: State, session: Any) -> None:
    """Refuse a session for a conversation that somebody else keeps, and to go on without the one that keeps it."""
    if session is None:
        if isinstance(state.conversation, InSession) and not state.ended:
            raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: give it that session")
        return
    missing = [name for name in SESSION if not hasattr(session, name)]
    if missing:
        raise UserError(f"{session!r} is not a session: it has no {', '.join(missing)}")
    if isinstance(state.conversation, OnServer):
        raise UserError(
            "a session cannot be used together with conversation_id, previous_response_id or "
            "auto_previous_response_id: the provider keeps that conversation already"
        )
    if isinstance(state.conversation, InSession) and state.conversation.session_id != session.session_id:
        raise UserError(
            f"this run belongs to the session {state.conversation.session_id!r}, not to {session.session_id!r}"
        )
    if state.taken and isinstance(state.conversation, Inline):
        raise UserError("this run began without a session; it cannot continue in one")
