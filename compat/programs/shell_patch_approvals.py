"""Local shell commands and patches that a person approves, in a run that is saved between the two."""

import asyncio
from pathlib import Path

from agents import (
    Agent,
    ApplyPatchTool,
    Runner,
    RunState,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    apply_diff,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult


class Editor:
    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        Path(operation.path).write_text(apply_diff("", operation.diff or "", mode="create"))
        return ApplyPatchResult(output=f"created {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        path = Path(operation.path)
        path.write_text(apply_diff(path.read_text(), operation.diff or ""))
        return ApplyPatchResult(output=f"updated {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        Path(operation.path).unlink()
        return ApplyPatchResult(status="failed", output="it was important")


async def execute(request) -> ShellResult:
    action = request.data.action
    print("executing", action.commands, action.timeout_ms)
    outputs = [
        ShellCommandOutput(
            command=command, stdout=f"ran {command}", stderr="", outcome=ShellCallOutcome(type="exit", exit_code=0)
        )
        for command in action.commands
    ]
    return ShellResult(output=outputs, max_output_length=action.max_output_length)


async def risky(context, operation, call_id) -> bool:
    return operation.type == "delete_file"


agent = Agent(
    name="Coder",
    tools=[ShellTool(executor=execute, needs_approval=True), ApplyPatchTool(editor=Editor(), needs_approval=risky)],
)
CALLS = (
    'do shell_call {"action": {"commands": ["ls", "pwd"], "timeout_ms": 100, "max_output_length": 50}, "status": "completed"}',
    'do apply_patch_call {"operation": {"type": "create_file", "path": "a.py", "diff": "+x = 1\\n+y = 2"}, "status": "completed"}',
    'do apply_patch_call {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\\n x = 1\\n-y = 2\\n+y = 3"}, "status": "completed"}',
    'do apply_patch_call {"operation": {"type": "delete_file", "path": "a.py"}, "status": "completed"}',
)


async def main() -> None:
    for number, text in enumerate(CALLS):
        result = await Runner.run(agent, text)
        while result.interruptions:
            state = await RunState.from_string(agent, result.to_state().to_string())
            for item in state.get_interruptions():
                print("asks", item.name, item.agent.name)
                if number == 0:
                    state.approve(item, always_approve=True)
                else:
                    state.reject(item)
            result = await Runner.run(agent, state)
        print(result.final_output)
        print([item.type for item in result.new_items], Path("a.py").exists() and Path("a.py").read_text())


asyncio.run(main())
