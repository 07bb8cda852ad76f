"""An mkdocs hook that refuses a site of which a page or picture loads something from elsewhere."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import BuildError

LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=.https?:|<link\b[^>]*\bhref=.https?:|url\(.?https?:|class=.mermaid"
)


def on_post_build(config: Any) -> None:
    site = Path(config["site_dir"])
    if found := [str(file.relative_to(site)) for file in list_files(site) if LOADED.search(file.read_text())]:
        raise BuildError(f"these pages load something from elsewhere: {', '.join(found)}")


def list_files(site: Path) -> list[Path]:
    return [*site.rglob("*.html"), *site.rglob("*.svg")]
