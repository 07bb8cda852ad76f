import agents

NAMES = [
    "AgentsException",
    "InputGuardrailTripwireTriggered",
    "MaxTurnsExceeded",
    "MCPToolCancellationError",
    "ModelBehaviorError",
    "ModelRefusalError",
    "ModelTimeoutError",
    "OutputGuardrailTripwireTriggered",
    "ToolInputGuardrailTripwireTriggered",
    "ToolOutputGuardrailTripwireTriggered",
    "ToolTimeoutError",
    "UserError",
]
for name in NAMES:
    kind = getattr(agents, name)
    print(name, issubclass(kind, agents.AgentsException), issubclass(kind, Exception))
for kind in (agents.MaxTurnsExceeded, agents.ModelBehaviorError, agents.UserError):
    error = kind("text")
    print(error.message, str(error), error.run_data)
error = agents.ToolTimeoutError("t", 1.5)
print(error.tool_name, error.timeout_seconds)
error = agents.ModelRefusalError("I cannot")
print(error.refusal if hasattr(error, "refusal") else "")
