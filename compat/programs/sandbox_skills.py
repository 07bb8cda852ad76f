import asyncio
from pathlib import Path

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import LocalDirLazySkillSource, Shell, Skill, Skills
from agents.sandbox.entries import LocalDir
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call


async def main() -> None:
    Path("skills/tea").mkdir(parents=True)
    Path("skills/tea/SKILL.md").write_text("---\nname: tea\ndescription: Makes tea.\n---\nBoil water.\n")
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    given = Skills(skills=[Skill(name="coffee", description="Makes coffee.", content="Grind beans.")])
    lazy = Skills(lazy_from=LocalDirLazySkillSource(source=LocalDir(src=Path("skills"))))
    for skills, steps in (
        (given, [[function_call("exec_command", {"cmd": "find . -type f; cat .agents/coffee/SKILL.md"}, call_id="c")]]),
        (
            lazy,
            [
                [function_call("load_skill", {"skill_name": "tea"}, call_id="l")],
                [function_call("exec_command", {"cmd": "find . -type f; tail -n 1 .agents/tea/SKILL.md"}, call_id="c")],
            ],
        ),
    ):
        model = ScriptedModel([*steps, [assistant_message("done")]])
        agent = SandboxAgent(name="A", model=model, capabilities=[skills, Shell()], default_manifest=Manifest())
        result = await Runner.run(agent, "go", run_config=config)
        print([tool.name for tool in model.calls[0].tools])
        print(
            [item.output for item in result.new_items if item.type == "tool_call_output_item"][-1].partition("Output:")[
                2
            ]
        )
        print("Makes" in model.calls[0].system_instructions)


asyncio.run(main())
