from standfast.sandbox import DockerVolumeMountStrategy as DockerVolumeMountStrategy
from standfast.sandbox import InContainerMountStrategy as InContainerMountStrategy
from standfast.sandbox import Mount as Mount
from standfast.sandbox import MountStrategy as MountStrategy
from standfast.sandbox import MountStrategyBase as MountStrategyBase
