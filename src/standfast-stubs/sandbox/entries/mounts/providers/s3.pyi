from standfast.sandbox import S3Mount as S3Mount
