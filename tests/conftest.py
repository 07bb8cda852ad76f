pytest_plugins = ["pytester", "holdfast.testing.leaks", "servers", "redis_server"]
