from standfast.sandbox import AzureBlobMount as AzureBlobMount
from standfast.sandbox import BoxMount as BoxMount
from standfast.sandbox import GCSMount as GCSMount
from standfast.sandbox import R2Mount as R2Mount
from standfast.sandbox import S3FilesMount as S3FilesMount
from standfast.sandbox import S3Mount as S3Mount
