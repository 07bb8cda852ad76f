from standfast.client.administration import RemoteAdmin as RemoteAdmin
from standfast.client.client import Client as Client
from standfast.client.errors import ServerError as ServerError
from standfast.client.errors import ServerUnreachable as ServerUnreachable
from standfast.client.runs import RemoteRun as RemoteRun
from standfast.client.sessions import RemoteSession as RemoteSession
from standfast.client.store import RemoteStore as RemoteStore
