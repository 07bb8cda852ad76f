from standfast.sandbox import R2Mount as R2Mount
