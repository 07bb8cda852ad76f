"""Draws the state diagrams of the documentation from the transition tables: ``python docs/draw_lifecycles.py``."""

import re
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).parent
DRAWN = re.compile(r"(<!-- drawn from (?P<module>[\w.]+) -->\n```mermaid\n)(?P<diagram>.*?)(^```$)", re.M | re.S)


def redrawn(text: str) -> str:
    """The page with its diagrams as the tables are now."""
    return DRAWN.sub(lambda found: f"{found[1]}{import_module(found['module']).TABLE.draw()}{found[4]}", text)


def main() -> None:
    for page in DOCS.rglob("*.md"):
        before = page.read_text()
        if (after := redrawn(before)) != before:
            page.write_text(after)
            print(f"drew {page.relative_to(DOCS)}")


if __name__ == "__main__":
    main()
