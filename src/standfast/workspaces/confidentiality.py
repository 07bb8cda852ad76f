"""What is encrypted in a session is not stored in clear in a workspace."""

from standfast.base.errors import Unsupported
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.workspaces.versions import parse_session_id

_REMEDIES = (
    "use a Runtime with encryption_key=, which encrypts them, or PythonSessions with the store of"
    " open_store('memory://') or with durability='off', which write them nowhere"
)


async def refuse_encrypted(backend: Backend, key: str, *, is_encrypted: bool) -> None:
    """Refuse to store the workspace of a session in this backend in clear, if the session is encrypted."""
    session_id = parse_session_id(key)
    if is_encrypted or session_id is None:
        return
    record = await backend.get_session(session_id)
    if record is not None and record.seal is not None:
        raise make_clear_error(f"session {session_id!r}")


def refuse_clear(backend: Backend, *, is_encrypted: bool) -> None:
    """Refuse to store the workspace of a run in clear; its session is encrypted, in whichever store."""
    if not is_encrypted and not isinstance(backend, MemoryBackend):
        raise make_clear_error("the session of this run")


def make_clear_error(session: str) -> Unsupported:
    return Unsupported(f"{session} is encrypted, and its variables and files would be stored unencrypted: {_REMEDIES}")
