from standfast.fleet.cluster import ClusterUnavailable as ClusterUnavailable
from standfast.fleet.pool import RayPool as RayPool
from standfast.fleet.session import RemoteWorkerSession as RemoteWorkerSession
from standfast.fleet.status import FleetStatus as FleetStatus
from standfast.fleet.status import NodeStatus as NodeStatus
from standfast.fleet.status import read_status as read_status
