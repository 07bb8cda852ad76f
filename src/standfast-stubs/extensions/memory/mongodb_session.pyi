from standfast.history import MongoDBSession as MongoDBSession
