import asyncio

from agents import (
    Agent,
    Runner,
    ShellTool,
    ShellToolContainerAutoEnvironment,
    ShellToolContainerNetworkPolicyAllowlist,
    ShellToolContainerNetworkPolicyDisabled,
    ShellToolContainerNetworkPolicyDomainSecret,
    ShellToolContainerReferenceEnvironment,
    ShellToolInlineSkill,
    ShellToolInlineSkillSource,
    ShellToolLocalEnvironment,
    ShellToolLocalSkill,
    ShellToolSkillReference,
    UserError,
)

source: ShellToolInlineSkillSource = {"type": "base64", "media_type": "application/zip", "data": "UEs="}
inline: ShellToolInlineSkill = {"type": "inline", "name": "n", "description": "d", "source": source}
reference: ShellToolSkillReference = {"type": "skill_reference", "skill_id": "sk_1", "version": "1"}
secret: ShellToolContainerNetworkPolicyDomainSecret = {"domain": "example.com", "name": "K", "value": "v"}
allow: ShellToolContainerNetworkPolicyAllowlist = {
    "type": "allowlist",
    "allowed_domains": ["example.com"],
    "domain_secrets": [secret],
}
closed: ShellToolContainerNetworkPolicyDisabled = {"type": "disabled"}
auto: ShellToolContainerAutoEnvironment = {
    "type": "container_auto",
    "skills": [inline, reference],
    "network_policy": allow,
    "memory_limit": "4g",
    "file_ids": ["f1"],
}
quiet: ShellToolContainerAutoEnvironment = {"type": "container_auto", "network_policy": closed}
existing: ShellToolContainerReferenceEnvironment = {"type": "container_reference", "container_id": "cntr_1"}
skill: ShellToolLocalSkill = {"name": "s", "description": "d", "path": "/skills/s"}
local: ShellToolLocalEnvironment = {"type": "local", "skills": [skill]}


async def run(request):
    return "ran " + " ; ".join(request.data.action.commands)


async def main() -> None:
    for environment in (auto, quiet, existing):
        agent = Agent(name="A", model="gpt-5.1", tools=[ShellTool(environment=environment)])
        print((await Runner.run(agent, "hello")).final_output)
    agent = Agent(name="A", model="gpt-5.1", tools=[ShellTool(environment=local, executor=run)])
    result = await Runner.run(agent, 'do shell_call {"action": {"commands": ["ls", "pwd"], "timeout_ms": 10}}')
    print(result.final_output, [item.type for item in result.new_items])
    for build in (
        lambda: ShellTool(),
        lambda: ShellTool(environment=local),
        lambda: ShellTool(environment=auto, executor=run),
        lambda: ShellTool(executor=run, needs_approval=True),
    ):
        try:
            tool = build()
            print(tool.name, tool.type, tool.environment)
        except (UserError, ValueError) as error:
            print(isinstance(error, UserError))


asyncio.run(main())
