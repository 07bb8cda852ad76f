"""An mkdocs hook that ranks pages in the search of the site: guides first, the reference after them."""

from typing import Any

RANKS = {"how-to": 4.0, "tutorial.md": 4.0, "reference": 0.1, "licences.md": 0.1}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    rank = RANKS.get(page.file.src_uri.partition("/")[0])
    if rank is not None:
        page.meta.setdefault("search", {"boost": rank})
    return markdown
