"""Remote storage and containers: manifests can describe them, and using them says what to do instead."""

import pytest

from standfast.sandbox import (
    AzureBlobMount,
    Dir,
    DockerSandboxClient,
    DockerSandboxClientOptions,
    DockerVolumeMountStrategy,
    InContainerMountStrategy,
    Manifest,
    MountConfigError,
    RcloneMountPattern,
    S3Mount,
    SandboxError,
    UnixLocalSandboxClient,
)


def make_mount() -> S3Mount:
    strategy = DockerVolumeMountStrategy(driver="rclone")
    return S3Mount(bucket="data", secret_access_key="hunter2", mount_strategy=strategy)


def test_a_manifest_with_remote_storage_can_be_stored_and_read():
    in_container = InContainerMountStrategy(pattern=RcloneMountPattern(mode="nfs"))
    blob = AzureBlobMount(account="a", container="c", mount_strategy=in_container)
    manifest = Manifest(entries={"data": make_mount(), "deep": Dir(children={"blob": blob})})
    again = Manifest.model_validate(manifest.model_dump(mode="json"))
    assert again == manifest
    assert [str(path) for _, path in again.mount_targets()] == ["/workspace/data", "/workspace/deep/blob"]


def test_secrets_of_remote_storage_are_not_printed():
    assert "hunter2" not in repr(Manifest(entries={"data": make_mount()}))


async def test_a_local_sandbox_refuses_remote_storage_before_anything_is_created():
    with pytest.raises(MountConfigError, match=r"/workspace/data is remote storage .* LocalDir"):
        await UnixLocalSandboxClient().create(manifest=Manifest(entries={"data": make_mount()}))


async def test_a_docker_client_can_be_constructed_and_says_what_to_use_instead():
    client = DockerSandboxClient(object())
    options = DockerSandboxClientOptions("python:3.14-slim", (80,))
    assert (options.image, options.exposed_ports, options.labels) == ("python:3.14-slim", (80,), {})
    with pytest.raises(SandboxError, match="UnixLocalSandboxClient"):
        await client.create(options=options)
