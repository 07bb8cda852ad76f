from agents import Agent, RunConfig
from agents.sandbox import SandboxAgent
from agents.voice import VoicePipelineConfig


def show(name, value) -> None:
    print(name, type(value).__name__)


config = RunConfig(
    model_settings={"temperature": 0.1},
    session_settings={"limit": 3},
    tool_execution={"max_function_tool_concurrency": 2},
    sandbox={"manifest": {"entries": {"a": {"type": "file", "content": "x"}}}, "archive_limits": {"max_members": 3}},
)
show("model_settings", config.model_settings)
show("session_settings", config.session_settings)
show("tool_execution", config.tool_execution)
show("sandbox", config.sandbox)
show("manifest", config.sandbox.manifest)
show("archive_limits", config.sandbox.archive_limits)
show("concurrency_limits", config.sandbox.concurrency_limits)
show("agent", Agent(name="a", model_settings={"temperature": 0.1}).model_settings)
show("default_manifest", SandboxAgent(name="a", default_manifest={"entries": {}}).default_manifest)
voice = VoicePipelineConfig(stt_settings={"language": "en"}, tts_settings={"voice": "alloy"})
show("stt_settings", voice.stt_settings)
show("tts_settings", voice.tts_settings)
for wrong in ({"sandbox": {"nope": 1}}, {"sandbox": 5}, {"tool_execution": 5}, {"model_settings": 5}):
    try:
        RunConfig(**wrong)
    except TypeError:
        print("refused", wrong)
