import asyncio
import io
from pathlib import Path

from agents.sandbox import Manifest
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import ExecTimeoutError, InvalidManifestPathError, WorkspaceReadNotFoundError
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient


async def main() -> None:
    client = UnixLocalSandboxClient()
    manifest = Manifest(
        entries={"a.txt": File(content=b"one\n"), "d": Dir(children={"b.txt": File(content=b"two\n")})},
        environment={"value": {"COLOR": "red"}},
    )
    session = await client.create(manifest=manifest, options=None)
    print(await session.running())
    async with session:
        print(await session.running())
        done = await session.exec("cat a.txt d/b.txt; echo $COLOR; echo oops >&2; exit 4")
        print(done.stdout, done.stderr, done.exit_code, done.ok())
        done = await session.exec("printf", "%s-", "x y", "z", shell=False)
        print(done.stdout, done.ok())
        await session.write(Path("new/file.bin"), io.BytesIO(b"\x00\x01"))
        print((await session.read(Path("new/file.bin"))).read())
        await session.mkdir("deep/er", parents=True)
        await session.rm("a.txt")
        print(sorted((Path(entry.path).name, entry.kind.value) for entry in await session.ls(".")))
        for path in ("missing.txt", "../outside"):
            try:
                await session.read(Path(path))
            except (WorkspaceReadNotFoundError, InvalidManifestPathError) as error:
                print(type(error).__name__, error.error_code.value)
        try:
            await session.exec("sleep 20", timeout=0.2)
        except ExecTimeoutError as error:
            print(type(error).__name__, error.error_code.value)
    print(await session.running())
    await client.delete(session)


asyncio.run(main())
