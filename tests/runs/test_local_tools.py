"""Tools that the program runs and the model calls by items of their own types: shell, apply_patch, computer, custom."""

from typing import Any

import pytest

from standfast import (
    Agent,
    ApplyPatchOperation,
    ApplyPatchResult,
    ApplyPatchTool,
    AsyncComputer,
    ComputerProvider,
    ComputerTool,
    CustomTool,
    LocalShellTool,
    ModelBehaviorError,
    RunHooks,
    Runner,
    RunState,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
    UserError,
    WebSearchTool,
    apply_diff,
)
from standfast.testing import ScriptedModel, assistant_message

SHELL_CALL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "c1",
    "status": "completed",
    "action": {"commands": ["echo hi", "ls"], "timeout_ms": 1000},
}
PATCH_CALL = {
    "type": "apply_patch_call",
    "id": "ap_1",
    "call_id": "c1",
    "status": "completed",
    "operation": {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"},
}
COMPUTER_CALL: dict[str, Any] = {
    "type": "computer_call",
    "id": "cc_1",
    "call_id": "c1",
    "status": "completed",
    "pending_safety_checks": [],
    "action": {"type": "click", "x": 1, "y": 2, "button": "left"},
}
CUSTOM_CALL = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "sql", "input": "select 1"}


def make_agent(tool: Any, call: dict[str, Any]) -> Agent[Any]:
    return Agent("a", tools=[tool], model=ScriptedModel([[call], [assistant_message("done")]]))


async def answer(tool: Any, call: dict[str, Any], **options: Any) -> Any:
    """Run an agent whose model calls the tool once, and return the item with the output."""
    result = await Runner.run(make_agent(tool, call), "x", **options)
    assert result.final_output == "done"
    (item,) = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert result.to_input_list()[-2] == item.raw_item
    return item


def echo(request: ShellCommandRequest) -> str:
    return " && ".join(request.data.action.commands)


async def test_a_shell_executor_gets_the_commands_and_the_model_its_output() -> None:
    item = await answer(ShellTool(executor=echo), SHELL_CALL)
    ending = {"type": "exit", "exit_code": 0}
    assert item.output == "echo hi && ls"
    assert item.raw_item == {
        "type": "shell_call_output",
        "call_id": "c1",
        "output": [{"stdout": "echo hi && ls", "stderr": "", "outcome": ending}],
    }


async def test_a_shell_result_has_an_output_for_each_command_within_the_limit() -> None:
    async def execute(request: ShellCommandRequest) -> ShellResult:
        return ShellResult(
            [
                ShellCommandOutput("out", "err", ShellCallOutcome("exit", 3), command="ls"),
                ShellCommandOutput("slow", outcome=ShellCallOutcome("timeout")),
            ],
            max_output_length=8,
        )

    item = await answer(ShellTool(executor=execute), SHELL_CALL)
    assert item.raw_item["max_output_length"] == 8
    assert [(part["stdout"], part["stderr"], part["outcome"]) for part in item.raw_item["output"]] == [
        ("out", "err", {"type": "exit", "exit_code": 3}),
        ("sl", "", {"type": "timeout"}),
    ]


async def test_an_executor_that_raises_is_a_failed_command() -> None:
    def execute(request: ShellCommandRequest) -> str:
        raise RuntimeError("no shell here")

    item = await answer(ShellTool(executor=execute), SHELL_CALL)
    assert item.output == "no shell here"
    assert item.raw_item["output"][0]["outcome"] == {"type": "exit", "exit_code": 1}


async def test_a_shell_call_waits_for_approval_and_is_made_after_the_state_was_saved() -> None:
    made = []

    def execute(request: ShellCommandRequest) -> str:
        made.append(request.data.action.commands)
        return "ok"

    agent = make_agent(ShellTool(executor=execute, needs_approval=True), SHELL_CALL)
    waiting = await Runner.run(agent, "x")
    assert [(item.tool_name, item.call_id) for item in waiting.interruptions] == [("shell", "c1")]
    assert waiting.interruptions[0].raw_item["action"]["commands"] == ["echo hi", "ls"]
    state = await RunState.from_string(agent, waiting.to_state().to_string())
    state.approve(state.get_interruptions()[0])
    assert made == []
    assert (await Runner.run(agent, state)).final_output == "done"
    assert made == [["echo hi", "ls"]]


async def test_an_approval_of_a_shell_call_is_valid_for_its_commands_only() -> None:
    agent = make_agent(ShellTool(executor=echo, needs_approval=True), SHELL_CALL)
    state = (await Runner.run(agent, "x")).to_state()
    state.approve(state.get_interruptions()[0])
    saved = state.to_string().replace("echo hi", "rm -rf /")
    with pytest.raises(ModelBehaviorError, match="other arguments"):
        await Runner.run(agent, await RunState.from_string(agent, saved))


@pytest.mark.parametrize(
    ("make_tool", "call", "output"),
    [
        (
            lambda **options: ShellTool(executor=echo, **options),
            SHELL_CALL,
            [{"stdout": "", "stderr": "not today", "outcome": {"type": "exit", "exit_code": 1}}],
        ),
        (lambda **options: ApplyPatchTool(editor=Files({}), **options), PATCH_CALL, "not today"),
        (
            lambda **options: CustomTool("sql", "runs SQL", lambda context, text: text, **options),
            CUSTOM_CALL,
            "not today",
        ),
    ],
)
async def test_a_rejected_call_has_an_output_in_the_format_of_its_tool(make_tool: Any, call: Any, output: Any) -> None:
    agent = make_agent(make_tool(needs_approval=True), call)
    state = (await Runner.run(agent, "x")).to_state()
    state.reject(state.get_interruptions()[0], rejection_message="not today")
    result = await Runner.run(agent, state)
    item = result.to_input_list()[-2]
    assert (item["type"], item["output"]) == (f"{call['type']}_output", output)


async def test_the_program_may_decide_at_once() -> None:
    asked = []

    def decide(context: Any, item: Any) -> Any:
        asked.append(item.raw_item["action"]["commands"])
        return {"approve": False, "reason": "read only"}

    item = await answer(ShellTool(executor=echo, needs_approval=True, on_approval=decide), SHELL_CALL)
    assert (asked, item.output) == ([["echo hi", "ls"]], "read only")


async def test_needs_approval_gets_what_the_model_asks_for() -> None:
    seen: list[Any] = []

    def needs(context: Any, request: Any, call_id: str) -> bool:
        seen.append(request)
        return False

    await answer(ShellTool(executor=echo, needs_approval=needs), SHELL_CALL)
    await answer(ApplyPatchTool(editor=Files({"a.txt": "a\n"}), needs_approval=needs), PATCH_CALL)
    await answer(CustomTool("sql", "runs SQL", lambda context, text: text, needs_approval=needs), CUSTOM_CALL)
    assert seen[0].commands == ["echo hi", "ls"]
    assert (seen[1].type, seen[1].path) == ("update_file", "a.txt")
    assert seen[2] == "select 1"


async def test_hooks_get_the_tool_that_the_agent_declares() -> None:
    class Hooks(RunHooks[Any]):
        def __init__(self) -> None:
            self.tools: list[Any] = []

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            self.tools.append(tool)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            self.tools.append(result)

    hooks, tool = Hooks(), ShellTool(executor=echo)
    await answer(tool, SHELL_CALL, hooks=hooks)
    assert hooks.tools == [tool, "echo hi && ls"]


async def test_a_container_of_the_provider_runs_the_commands_itself() -> None:
    output = {"type": "shell_call_output", "call_id": "c1", "output": []}
    model = ScriptedModel([[SHELL_CALL, output, assistant_message("done")]])
    agent = Agent("a", tools=[ShellTool(environment={"type": "container_auto"})], model=model)
    result = await Runner.run(agent, "x")
    assert [item.type for item in result.new_items] == [
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]


def test_a_shell_tool_needs_an_executor_or_a_container() -> None:
    with pytest.raises(UserError, match="requires an executor"):
        ShellTool()
    with pytest.raises(UserError, match="does not accept an executor"):
        ShellTool(executor=echo, environment={"type": "container_auto"})


async def test_the_older_shell_tool_gets_the_call() -> None:
    call = {"type": "local_shell_call", "id": "l1", "call_id": "c1", "status": "completed"}
    action = {"type": "exec", "command": ["ls", "-l"], "env": {}}
    tool = LocalShellTool(executor=lambda request: " ".join(request.data["action"]["command"]))
    item = await answer(tool, {**call, "action": action})
    assert item.raw_item == {"type": "local_shell_call_output", "call_id": "c1", "output": "ls -l"}


@pytest.mark.parametrize("call", [SHELL_CALL, PATCH_CALL, COMPUTER_CALL, CUSTOM_CALL])
async def test_a_call_without_a_tool_for_it_ends_the_run(call: Any) -> None:
    with pytest.raises(ModelBehaviorError, match=call["type"]):
        await Runner.run(make_agent(WebSearchTool(), call), "x")


class Files:
    """An editor of files in memory."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def create_file(self, operation: ApplyPatchOperation) -> None:
        self.files[operation.path] = apply_diff("", operation.diff or "", mode="create")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        self.files[operation.path] = apply_diff(self.files[operation.path], operation.diff or "")
        return ApplyPatchResult(output=f"changed {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> str:
        raise PermissionError(f"{operation.path} must stay")


async def test_an_editor_changes_files() -> None:
    files = {"a.txt": "a\n"}
    item = await answer(ApplyPatchTool(editor=Files(files)), PATCH_CALL)
    assert files == {"a.txt": "b\n"}
    assert item.raw_item == {
        "type": "apply_patch_call_output",
        "call_id": "c1",
        "status": "completed",
        "output": "changed a.txt",
    }


async def test_a_change_that_fails_is_reported_to_the_model() -> None:
    call = {**PATCH_CALL, "operation": {"type": "delete_file", "path": "a.txt"}}
    item = await answer(ApplyPatchTool(editor=Files({})), call)
    assert (item.raw_item["status"], item.output) == ("failed", "a.txt must stay")


async def test_custom_data_of_a_change_is_kept_beside_the_output() -> None:
    tool = ApplyPatchTool(
        editor=Files({"a.txt": "a\n"}), custom_data_extractor=lambda data: {"paths": [data.operations[0].path]}
    )
    item = await answer(tool, PATCH_CALL)
    assert item.custom_data == {"paths": ["a.txt"]}


async def test_a_custom_tool_gets_text() -> None:
    async def run_sql(context: Any, text: str) -> Any:
        return [context.tool_name, context.tool_arguments, text]

    item = await answer(CustomTool("sql", "runs SQL", run_sql), CUSTOM_CALL)
    assert item.raw_item["output"] == "['sql', 'select 1', 'select 1']"


class Screen(AsyncComputer):
    """A computer that records what it is asked to do."""

    def __init__(self) -> None:
        self.actions: list[Any] = []

    async def screenshot(self) -> str:
        return "AAAA"

    async def click(self, x: int, y: int, button: str) -> None:
        self.actions.append(("click", x, y, button))

    async def double_click(self, x: int, y: int) -> None:
        self.actions.append(("double_click", x, y))

    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None:
        self.actions.append(("scroll", x, y, scroll_x, scroll_y))

    async def type(self, text: str) -> None:
        self.actions.append(("type", text))

    async def wait(self) -> None:
        self.actions.append(("wait",))

    async def move(self, x: int, y: int) -> None:
        self.actions.append(("move", x, y))

    async def keypress(self, keys: list[str]) -> None:
        self.actions.append(("keypress", keys))

    async def drag(self, path: list[tuple[int, int]]) -> None:
        self.actions.append(("drag", path))


@pytest.mark.parametrize(
    ("action", "done"),
    [
        ({"type": "click", "x": 1, "y": 2, "button": "left"}, ("click", 1, 2, "left")),
        ({"type": "double_click", "x": 1, "y": 2}, ("double_click", 1, 2)),
        ({"type": "scroll", "x": 1, "y": 2, "scroll_x": 3, "scroll_y": 4}, ("scroll", 1, 2, 3, 4)),
        ({"type": "type", "text": "hi"}, ("type", "hi")),
        ({"type": "wait"}, ("wait",)),
        ({"type": "move", "x": 1, "y": 2}, ("move", 1, 2)),
        ({"type": "keypress", "keys": ["A"]}, ("keypress", ["A"])),
        ({"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}, ("drag", [(1, 2), (3, 4)])),
        ({"type": "screenshot"}, None),
    ],
)
async def test_a_computer_performs_an_action_and_shows_its_screen(action: Any, done: Any) -> None:
    screen = Screen()
    item = await answer(ComputerTool(computer=screen), {**COMPUTER_CALL, "action": action})
    assert screen.actions == ([] if done is None else [done])
    assert item.output == "data:image/png;base64,AAAA"
    assert item.raw_item["output"] == {"type": "computer_screenshot", "image_url": item.output}


async def test_safety_checks_are_acknowledged_by_the_program() -> None:
    check = {"id": "s1", "code": "malicious", "message": "careful"}
    call = {**COMPUTER_CALL, "pending_safety_checks": [check]}
    item = await answer(ComputerTool(computer=Screen(), on_safety_check=lambda data: True), call)
    assert item.raw_item["acknowledged_safety_checks"] == [check]
    refusing = ComputerTool(computer=Screen(), on_safety_check=lambda data: False)
    with pytest.raises(UserError, match="was not acknowledged"):
        await Runner.run(make_agent(refusing, call), "x")


async def test_a_run_has_a_computer_of_its_own_which_is_released_at_its_end() -> None:
    log: list[str] = []

    def create(*, run_context: Any) -> Screen:
        log.append("created")
        return Screen()

    async def dispose(*, run_context: Any, computer: Screen) -> None:
        log.append(f"released after {len(computer.actions)}")

    await answer(ComputerTool(computer=ComputerProvider(create=create, dispose=dispose)), COMPUTER_CALL)
    assert log == ["created", "released after 1"]
