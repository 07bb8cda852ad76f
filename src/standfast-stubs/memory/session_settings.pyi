from standfast.history import SessionSettings as SessionSettings
