from standfast.history import RedisSession as RedisSession
