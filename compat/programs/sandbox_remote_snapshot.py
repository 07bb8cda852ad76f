import asyncio
import io
from pathlib import Path

from agents.sandbox import RemoteSnapshotSpec
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.session import Dependencies


class Bucket:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def upload(self, snapshot_id: str, data: io.IOBase) -> None:
        self.kept[snapshot_id] = data.read()

    async def download(self, snapshot_id: str) -> io.IOBase:
        return io.BytesIO(self.kept[snapshot_id])

    async def exists(self, snapshot_id: str) -> bool:
        return snapshot_id in self.kept


async def main() -> None:
    bucket = Bucket()
    client = UnixLocalSandboxClient(dependencies=Dependencies().bind_value("bucket", bucket))
    session = await client.create(snapshot=RemoteSnapshotSpec(client_dependency_key="bucket"), options=None)
    async with session:
        await session.write(Path("a"), io.BytesIO(b"kept"))
    print(len(bucket.kept), session.state.snapshot.type)
    async with await client.resume(session.state) as resumed:
        print((await resumed.read(Path("a"))).read())


asyncio.run(main())
