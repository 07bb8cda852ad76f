"""The file of a store: its permissions, its identity, and why it cannot be opened."""

import os
from pathlib import Path


def create_private_file(path: str) -> None:
    """Create the file, readable by its user only, unless it exists. SQLite gives its log the same permissions."""
    try:
        # A file that exists is not opened: closing it would release the locks that this process has on it, and the next
        # process to close the database would delete the log in which this one goes on writing.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return  # opening it reports the error


def get_file_id(path: str) -> tuple[int, int] | None:
    """Return the device and inode, which distinguish a file from a later one of the same name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def explain_open_failure(path: Path) -> str:
    """Return why a file cannot be opened; the message of SQLite does not say it."""
    if path.is_dir():
        return "this is a folder, not a database"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist: make it first"
    return "permission denied: check the permissions of the file and its folder"
