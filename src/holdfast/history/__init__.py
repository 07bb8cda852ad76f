"""Histories of conversations. Names are resolved on first use, so that no backend is imported before it is needed."""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "contract": ["Session", "SessionABC", "SessionInputCallback", "SessionSettings"],
    "searching": ["Hit"],
    "session": ["StoredSession"],
    "checking": ["Corrupt", "Report"],
    "compacting": ["CompactingSession", "Trigger"],
    "encrypted": ["EncryptedSession"],
    "store": ["SessionInfo", "Store", "open_store"],
    "sqlite_session": ["AsyncSQLiteSession", "SQLiteSession"],
    "advanced_sqlite_session": ["AdvancedSQLiteSession"],
    "sqlalchemy_session": ["SQLAlchemySession"],
    "redis_session": ["RedisSession"],
    "conversations": ["OpenAIConversationsSession"],
    "responses_compaction": [
        "OpenAIResponsesCompactionArgs",
        "OpenAIResponsesCompactionAwareSession",
        "OpenAIResponsesCompactionSession",
        "is_openai_responses_compaction_aware_session",
    ],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
