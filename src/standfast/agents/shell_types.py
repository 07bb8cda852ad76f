"""Where the commands of a shell tool run, in the format of the Responses API."""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict


class ShellToolLocalSkill(TypedDict):
    """A skill in a folder of the machine that runs the commands."""

    description: str
    name: str
    path: str


class ShellToolLocalEnvironment(TypedDict):
    """The program runs the commands."""

    type: Literal["local"]
    skills: NotRequired[list[ShellToolLocalSkill]]


class ShellToolSkillReference(TypedDict):
    """A skill that the provider stores."""

    type: Literal["skill_reference"]
    skill_id: str
    version: NotRequired[str]


class ShellToolInlineSkillSource(TypedDict):
    """The files of a skill, as a zip archive in Base64."""

    data: str
    media_type: Literal["application/zip"]
    type: Literal["base64"]


class ShellToolInlineSkill(TypedDict):
    """A skill that is sent with the request."""

    description: str
    name: str
    source: ShellToolInlineSkillSource
    type: Literal["inline"]


class ShellToolContainerNetworkPolicyDomainSecret(TypedDict):
    """A secret that the container's proxy adds to requests to a domain."""

    domain: str
    name: str
    value: str


class ShellToolContainerNetworkPolicyAllowlist(TypedDict):
    """The container reaches these domains only."""

    allowed_domains: list[str]
    type: Literal["allowlist"]
    domain_secrets: NotRequired[list[ShellToolContainerNetworkPolicyDomainSecret]]


class ShellToolContainerNetworkPolicyDisabled(TypedDict):
    """The container has no network."""

    type: Literal["disabled"]


ShellToolContainerSkill: TypeAlias = ShellToolSkillReference | ShellToolInlineSkill
ShellToolContainerNetworkPolicy: TypeAlias = (
    ShellToolContainerNetworkPolicyAllowlist | ShellToolContainerNetworkPolicyDisabled
)


class ShellToolContainerAutoEnvironment(TypedDict):
    """The provider makes a container for the commands."""

    type: Literal["container_auto"]
    file_ids: NotRequired[list[str]]
    memory_limit: NotRequired[Literal["1g", "4g", "16g", "64g"] | None]
    network_policy: NotRequired[ShellToolContainerNetworkPolicy]
    skills: NotRequired[list[ShellToolContainerSkill]]


class ShellToolContainerReferenceEnvironment(TypedDict):
    """The commands run in an existing container of the provider."""

    type: Literal["container_reference"]
    container_id: str


ShellToolHostedEnvironment: TypeAlias = ShellToolContainerAutoEnvironment | ShellToolContainerReferenceEnvironment
ShellToolEnvironment: TypeAlias = ShellToolLocalEnvironment | ShellToolHostedEnvironment
