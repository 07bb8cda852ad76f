from standfast.sandbox import S3FilesMount as S3FilesMount
