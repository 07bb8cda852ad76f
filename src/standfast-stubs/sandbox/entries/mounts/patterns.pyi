from standfast.sandbox import FuseMountPattern as FuseMountPattern
from standfast.sandbox import MountPattern as MountPattern
from standfast.sandbox import MountPatternBase as MountPatternBase
from standfast.sandbox import MountpointMountPattern as MountpointMountPattern
from standfast.sandbox import RcloneMountPattern as RcloneMountPattern
from standfast.sandbox import S3FilesMountPattern as S3FilesMountPattern
