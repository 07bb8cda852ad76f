import agents

print(isinstance(agents.__version__, str), agents.__version__.count(".") >= 1)
for setter in (agents.enable_verbose_stdout_logging, agents.set_default_openai_key, agents.set_tracing_export_api_key):
    print(callable(setter))
