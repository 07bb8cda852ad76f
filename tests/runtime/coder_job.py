"""A sandbox agent for durable runs, whose steps depend on how many calls are done."""

import asyncio
from typing import Any

from standfast import RunConfig, function_tool
from standfast.sandbox import (
    EnvEntry,
    Environment,
    File,
    Manifest,
    SandboxAgent,
    SandboxRunConfig,
    StrEnvValue,
    UnixLocalSandboxClient,
)
from standfast.sandbox.capabilities import ExecCommandTool, Shell
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call


@function_tool(needs_approval=True)
def publish() -> str:
    return "published"


def coder(steps: list[Any], *, hang: str = "") -> SandboxAgent[Any]:
    """Return an agent that answers with the next step: as many are done as the conversation has outputs and answers.

    With ``hang`` it prints that and waits for ever: ``inside`` the second command, or ``after`` it.
    """

    class Hanging(ExecCommandTool):
        async def run(self, args: Any) -> str:
            if hang == "inside" and "second" in args.cmd:
                args.cmd += "; sleep 1000"
                print(hang, flush=True)
            return await super().run(args)

    def configure(tools: Any) -> None:
        tools.exec_command = Hanging(session=tools.exec_command.session)

    async def answer(call: Any) -> list[Any]:
        done = sum(
            item.get("type") in ("function_call_output", "custom_tool_call_output") or item.get("role") == "assistant"
            for item in call.input
        )
        if hang == "after" and done == 2:
            print(hang, flush=True)
            await asyncio.Event().wait()
        return steps[done] if done < len(steps) else [assistant_message("nothing left")]

    model = ScriptedModel([ModelStep.respond(answer) for _ in range(100)])
    return SandboxAgent("coder", tools=[publish], model=model, capabilities=[Shell(configure_tools=configure)])


def sandbox_config(token: str = "") -> RunConfig:
    entry = EnvEntry(value=StrEnvValue(value=token), ephemeral=True)
    manifest = Manifest(entries={"notes": File(content=b"hi")}, environment=Environment(value={"TOKEN": entry}))
    return RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient(), manifest=manifest))


def make_steps() -> list[Any]:
    lines = ["echo first > a", "echo second >> a", "cat a"]
    calls = [[function_call("exec_command", {"cmd": line}, call_id=f"c{index}")] for index, line in enumerate(lines)]
    return [*calls, [assistant_message("done")]]
