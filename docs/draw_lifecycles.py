"""Update the state diagrams in the documentation from the transition tables: ``python docs/draw_lifecycles.py``."""

import re
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).parent
DRAWN = re.compile(r"(<!-- drawn from (?P<module>[\w.]+) -->\n```mermaid\n)(?P<diagram>.*?)(^```$)", re.M | re.S)


def redraw(text: str) -> str:
    """Return the page with its diagrams replaced by those of the current tables."""
    return DRAWN.sub(lambda match: f"{match[1]}{import_module(match['module']).TABLE.to_mermaid()}{match[4]}", text)


def main() -> None:
    for page in DOCS.rglob("*.md"):
        before = page.read_text()
        if (after := redraw(before)) != before:
            page.write_text(after)
            print(f"drew {page.relative_to(DOCS)}")


if __name__ == "__main__":
    main()
