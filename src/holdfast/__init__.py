"""holdfast keeps agent sessions alive and true.

Public names are resolved on first use, so importing the package imports nothing heavy.
"""

from holdfast.base.lazy import lazy_names

__version__ = "0.1.0"

_HOMES = {
    "base.errors": [
        "AlreadyExists",
        "Closed",
        "HistoryMoved",
        "HistoryTampered",
        "HoldfastError",
        "InvalidInput",
        "InvalidItem",
        "KeyReused",
        "MissingExtra",
        "NotFound",
        "SchemaTooNew",
        "SchemaTooOld",
        "SessionDamaged",
        "StoreUnavailable",
        "Unsupported",
        "WrongKey",
    ],
    "history": [
        "AsyncSQLiteSession",
        "CompactingSession",
        "EncryptedSession",
        "OpenAIConversationsSession",
        "OpenAIResponsesCompactionArgs",
        "OpenAIResponsesCompactionAwareSession",
        "OpenAIResponsesCompactionSession",
        "RedisSession",
        "SQLAlchemySession",
        "SQLiteSession",
        "Session",
        "SessionABC",
        "SessionInfo",
        "SessionSettings",
        "Store",
        "is_openai_responses_compaction_aware_session",
        "open_store",
    ],
    "store.contract": ["Head"],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
