from standfast.history import EncryptedSession as EncryptedSession
