import asyncio

from agents import Agent, ApplyPatchTool, Runner, apply_diff
from agents.editor import ApplyPatchOperation, ApplyPatchResult


class Editor:
    files = {"a.txt": "one\ntwo\n"}

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        self.files[operation.path] = apply_diff("", operation.diff, mode="create")
        return ApplyPatchResult(output=f"created {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        self.files[operation.path] = apply_diff(self.files[operation.path], operation.diff)
        return ApplyPatchResult(output=f"updated {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        return ApplyPatchResult(status="failed", output="no")


editor = Editor()
agent = Agent(name="A", tools=[ApplyPatchTool(editor=editor)], model="gpt-4.1")


async def main() -> None:
    for operation in (
        '{"type": "update_file", "path": "a.txt", "diff": "@@\\n-two\\n+2"}',
        '{"type": "delete_file", "path": "a.txt"}',
    ):
        print((await Runner.run(agent, f'do apply_patch_call {{"operation": {operation}}}')).final_output)
    print(editor.files)


asyncio.run(main())
