"""``standfast keys`` and ``standfast audit``."""

import asyncio
import json

from typer.testing import CliRunner

from standfast import open_store
from standfast.cli.app import app
from standfast.server import ApiKeys


def authenticate(url: str, secret: str):
    async def ask():
        async with open_store(url) as store:
            return await ApiKeys(store).authenticate({"authorization": f"Bearer {secret}"})

    return asyncio.run(ask())


def test_a_key_is_created_listed_and_revoked(run_json, standfast, url):
    made = run_json("keys", "create", "laptop", "--owner", "ann", "--role", "approver", "--expires", "90d")
    principal = authenticate(url, made["secret"])
    assert (principal.owner, principal.role.name, principal.subject) == ("ann", "APPROVER", f"key:{made['id']}")
    assert made["expires_at"] - made["created_at"] > 89 * 86400
    [listed] = run_json("keys", "list")
    assert (listed["name"], listed["status"], listed["owner"]) == ("laptop", "active", "ann")
    assert listed["last_used_at"] is not None
    assert made["secret"].rpartition("_")[2] not in standfast("keys", "list").stdout + str(listed)
    assert run_json("keys", "revoke", made["id"])["revoked_at"] is not None
    assert "revoked" in standfast("keys", "list").stdout


def test_the_secret_is_the_first_line_of_the_output(standfast, url):
    done = standfast("keys", "create", "laptop", "--owner", "ann")
    assert authenticate(url, done.stdout.splitlines()[0]).role.name == "USER"


def test_wrong_keys_are_refused(run_json, standfast, stored_url):
    for options in (["--owner", "ann", "--role", "root"], ["--owner", "ann", "--expires", "soon"], ["--owner", ""], []):
        assert standfast("keys", "create", "k", *options).exit_code == 2
    assert standfast("keys", "revoke", "nosuchkey").exit_code == 5
    assert run_json("keys", "list") == []


def test_the_audit_log_is_listed_and_pruned(run_json, standfast, url):
    made = [run_json("keys", "create", name, "--owner", "ann") for name in ("a", "b")]
    run_json("keys", "revoke", made[0]["id"])
    listed = run_json("audit", "list")
    assert [entry["action"] for entry in listed] == ["key revoked", "key created", "key created"]
    assert all(entry["subject"].startswith("cli") for entry in listed)
    assert [entry["details"]["name"] for entry in run_json("audit", "list", "--action", "key created")] == ["b", "a"]
    assert run_json("audit", "list", "--limit", "1", "--after", listed[0]["id"]) == listed[1:2]
    assert run_json("audit", "list", "--since", "1h", "--subject", "nobody") == []
    assert "key revoked" in standfast("audit", "list").stdout
    assert run_json("audit", "prune", "--older-than", "1d", "--yes") == {"deleted": 0}
    assert run_json("audit", "prune", "--older-than", "0s", "--yes") == {"deleted": 3}


def test_owners_are_kept_apart_in_postgresql(postgres_url):
    options = ["--store", postgres_url, "--json"]

    def run(name: str):
        done = CliRunner().invoke(app, ["owners", name, *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["protected"]

    assert [run(name) for name in ("status", "protect", "status", "unprotect", "status")] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_owners_are_kept_apart_in_postgresql_only(standfast, stored_url):
    for name in ("status", "protect", "unprotect"):
        done = standfast("owners", name)
        assert (done.exit_code, "only PostgreSQL" in done.stderr) == (2, True)
