from standfast.history import AdvancedSQLiteSession as AdvancedSQLiteSession
from standfast.history import AsyncSQLiteSession as AsyncSQLiteSession
from standfast.history import EncryptedSession as EncryptedSession
from standfast.history import RedisSession as RedisSession
from standfast.history import SQLAlchemySession as SQLAlchemySession
