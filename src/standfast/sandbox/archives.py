"""Archives that programs extract into a workspace, read within limits."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath

from standfast.sandbox.config import SandboxArchiveLimits
from standfast.sandbox.manifest_entries import ArchiveMember
from standfast.sandbox.workspace_paths import to_relative_path


def read_tar(content: bytes, prefix: PurePosixPath, limits: SandboxArchiveLimits) -> Iterator[ArchiveMember]:
    """Yield the files and directories of a tar archive, compressed or not. Links and special files are refused."""
    total = 0
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
        for count, info in enumerate(archive, 1):
            limits.check_members(count)
            path = prefix / to_relative_path(info.name)
            if info.isdir():
                yield ArchiveMember(path, info.mode & 0o777)
                continue
            if not info.isreg():
                raise ValueError(f"{info.name} in the archive is neither a file nor a directory")
            total += info.size
            limits.check_extracted(total)
            file = archive.extractfile(info)
            yield ArchiveMember(path, info.mode & 0o777, data=b"" if file is None else file.read())


def read_zip(content: bytes, prefix: PurePosixPath, limits: SandboxArchiveLimits) -> Iterator[ArchiveMember]:
    """Yield the files and directories of a zip archive."""
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for count, info in enumerate(archive.infolist(), 1):
                limits.check_members(count)
                path, mode = prefix / to_relative_path(info.filename), info.external_attr >> 16 & 0o777
                if info.is_dir():
                    yield ArchiveMember(path, mode or 0o755)
                    continue
                with archive.open(info) as file:
                    data = file.read() if limits.max_extracted_bytes is None else limits.read_within(file, total)
                total += len(data)
                limits.check_extracted(total)
                yield ArchiveMember(path, mode or 0o644, data=data)
    except zipfile.BadZipFile as problem:
        raise ValueError(f"the data are not a zip archive: {problem}") from problem
