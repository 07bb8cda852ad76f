"""The store a command works on."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import NotFound
from holdfast.history.store import Opening, open_store

DEFAULT_STORE = "sqlite:///holdfast.db"

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        "-s",
        envvar="HOLDFAST_STORE",
        help="Where everything is kept: sqlite:///PATH, postgresql+asyncpg://..., redis://...",
    ),
]


class NoStore(NotFound):
    """Nothing has been kept there yet."""

    def __init__(self, url: str) -> None:
        super().__init__("store", url)
        self.args = (f"there is no store at {url} yet: name another with --store or HOLDFAST_STORE",)


def checked(url: str) -> str:
    """The address of a store to look into: a SQLite file that is not there is not made."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and path not in ("", ":memory:") and not Path(path).exists():
        raise NoStore(url)
    return url


def existing(url: str) -> Opening:
    return open_store(checked(url))
