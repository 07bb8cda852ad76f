from standfast.history import SQLiteSession as SQLiteSession
