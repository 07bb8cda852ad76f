import asyncio
from pathlib import Path

from agents.sandbox import Manifest
from agents.sandbox.entries import Dir, File, LocalDir, LocalFile
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient


async def main() -> None:
    Path("data/sub").mkdir(parents=True)
    Path("data/one.csv").write_text("1\n")
    Path("data/sub/two.csv").write_text("2\n")
    Path("readme.md").write_text("# hello\n")
    manifest = Manifest(
        entries={
            "README.md": LocalFile(src=Path("readme.md")),
            "input": LocalDir(src=Path("data"), description="the input"),
            "output": Dir(description="results go here"),
            "task.txt": File(content=b"sum up"),
        }
    )
    async with await UnixLocalSandboxClient().create(manifest=manifest, options=None) as session:
        found = await session.exec("find . | sort; cat README.md input/one.csv input/sub/two.csv task.txt")
        print(found.stdout.decode())
    for entries in ({"../x": File(content=b"")}, {"/etc/x": File(content=b"")}):
        try:
            Manifest(entries=entries).validated_entries()
        except Exception as error:
            print(type(error).__name__)


asyncio.run(main())
