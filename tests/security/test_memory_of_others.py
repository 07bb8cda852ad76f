"""What a worker finds of others in its own memory, which is a copy of the fork server's."""

import secrets

SCAN = """
import os, re

def scan(name):
    # The pattern does not match its own text.
    pattern, found = re.compile(name.encode() + rb"-secret-[0-9a-f]{16}"), set()
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    for line in open("/proc/self/maps"):
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        for place in range(start, end, 1 << 20):
            try:
                found.update(pattern.findall(os.pread(memory, min(1 << 20, end - place), place)))
            except (OSError, OverflowError):
                break
    os.close(memory)
    return len(found)
"""


def make_secrets(tenant: str) -> dict[str, str]:
    """Return variables of several sizes, since what is freed is overwritten differently."""
    values = [f"{tenant}-secret-{secrets.token_hex(8)}" for _ in range(8)]
    long = ",".join(f"{tenant}-secret-{secrets.token_hex(8)}" for _ in range(60))
    return {f"KEY_{number}": value for number, value in enumerate(values)} | {"CREDENTIAL": long}


async def test_the_environment_of_one_session_is_not_in_the_memory_of_later_ones(sandboxed):
    await sandboxed()
    first = await sandboxed(environment=make_secrets("alpha"))
    assert (await first.run(SCAN + "scan('alpha')", timeout=120)).value == 68, "it finds its own"
    await first.shutdown()
    for _ in range(3):
        later = await sandboxed()
        result = await later.run(SCAN + "scan('alpha')", timeout=120)
        assert result.value == 0, result.error
