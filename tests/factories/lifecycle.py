"""Resources and tasks for the tests of scopes and owners."""

import asyncio
from contextlib import asynccontextmanager


async def turns(count=10):
    """Run the event loop for some iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def forever():
    await asyncio.Event().wait()


class ResourceLog(list):
    """Records acquisitions (``+name``) and releases (``-name``) in order."""

    @asynccontextmanager
    async def resource(self, name, *, awaits=1, fails=None, release_fails=None):
        await turns(awaits)
        if fails is not None:
            raise fails
        self.append(f"+{name}")
        try:
            yield name
        finally:
            try:
                await turns(awaits)
            finally:
                self.append(f"-{name}")
            if release_fails is not None:
                raise release_fails

    async def child(self, name, *, until=None):
        self.append(f"+{name}")
        try:
            await (until.wait() if until else forever())
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.append(f"-{name}")

    def check_balanced(self):
        assert sorted(e[1:] for e in self if e[0] == "+") == sorted(e[1:] for e in self if e[0] == "-"), self
