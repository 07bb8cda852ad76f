import asyncio

from agents.sandbox import Manifest
from agents.sandbox.entries import (
    DockerVolumeMountStrategy,
    File,
    InContainerMountStrategy,
    R2Mount,
    RcloneMountPattern,
    S3Mount,
)
from agents.sandbox.errors import MountConfigError
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient


async def main() -> None:
    rclone = InContainerMountStrategy(pattern=RcloneMountPattern())
    manifest = Manifest(
        entries={
            "notes.txt": File(content=b"x", description="Notes"),
            "data": S3Mount(bucket="b", mount_strategy=DockerVolumeMountStrategy(driver="rclone"), description="Data"),
            "more": R2Mount(bucket="b", account_id="a", mount_strategy=rclone, read_only=False),
        }
    )
    print(manifest.describe().strip())
    print([str(path) for _, path in manifest.mount_targets()], sorted(map(str, manifest.ephemeral_entry_paths())))
    dumped = manifest.model_dump(mode="json")["entries"]
    print(dumped["data"], dumped["more"])
    print(Manifest.model_validate(manifest.model_dump(mode="json")) == manifest)
    try:
        await UnixLocalSandboxClient().create(manifest=manifest)
    except MountConfigError as error:
        print(error.error_code)


asyncio.run(main())
