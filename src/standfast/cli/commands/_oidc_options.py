"""The options of ``standfast serve`` for tokens of an identity provider."""

from typing import TYPE_CHECKING, Annotated

import typer

from standfast.base.errors import InvalidInput

if TYPE_CHECKING:
    from standfast.server import Oidc

OidcIssuer = Annotated[
    str | None,
    typer.Option(
        envvar="STANDFAST_OIDC_ISSUER", help="The address of an OpenID Connect issuer whose tokens are accepted."
    ),
]
OidcAudience = Annotated[
    str | None,
    typer.Option(envvar="STANDFAST_OIDC_AUDIENCE", help="The audience that tokens for this server have."),
]
OidcOwnerClaim = Annotated[str, typer.Option(help="The claim that names the owner.")]
OidcRoleClaim = Annotated[str, typer.Option(help="The claim that has the roles, such as realm_access.roles.")]
OidcRoles = Annotated[
    list[str] | None,
    typer.Option("--oidc-role", metavar="VALUE=ROLE", help="The role that a value of the role claim gives."),
]


def make_oidc(
    issuer: str | None, audience: str | None, owner_claim: str, role_claim: str, roles: list[str] | None
) -> "Oidc | None":
    """Return the authenticator of these options, or ``None`` without an issuer."""
    if issuer is None:
        if audience or roles:
            raise InvalidInput("--oidc-audience and --oidc-role need --oidc-issuer, the address of the issuer")
        return None
    if audience is None:
        raise InvalidInput("--oidc-issuer needs --oidc-audience: what the issuer writes into tokens for this server")
    from standfast.server import Oidc

    return Oidc(
        issuer, audience, owner_claim=owner_claim, role_claim=role_claim, roles=parse_roles(roles) if roles else None
    )


def parse_roles(texts: list[str]) -> dict[str, str]:
    """Return the roles by the values of the claim, from texts ``VALUE=ROLE``."""
    found = {}
    for text in texts:
        value, equals, role = text.rpartition("=")
        if not value or not equals:
            raise InvalidInput(f"--oidc-role is VALUE=ROLE, for example support-lead=approver, not {text!r}")
        found[value] = role
    return found
