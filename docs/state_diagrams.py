"""A hook of mkdocs: state diagrams as SVG in the page itself, so that the site needs no script from anywhere.

The pages have them as Mermaid, which code hosts show. Here every state is a line from top to bottom, and every
transition an arrow from line to line, with the events that cause it.
"""

import re
from html import escape
from typing import Any

FENCE = re.compile(r"^```mermaid\n(?P<diagram>.*?)^```$", re.M | re.S)
ARROW = re.compile(r"^\s*(\S+) --> (\S+)(?: : (.*))?$", re.M)
EDGE = "[*]"
WIDTH, HEIGHT, TOP = 126, 34, 46
COLOURS = "fill:none;stroke:currentColor"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return FENCE.sub(lambda found: ladder(found["diagram"]), markdown)


def ladder(diagram: str) -> str:
    """The diagram as SVG. A state's own arrows stand together, and those between the same two states are one."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, target, label in ARROW.findall(diagram):
        arrows.setdefault((source, target), []).append(label)
    states = list(dict.fromkeys(source for source, _ in arrows if source != EDGE))
    ends = [source for source, target in arrows if target == EDGE]
    (begin,) = [target for source, target in arrows if source == EDGE]
    between = {pair: labels for pair, labels in arrows.items() if EDGE not in pair}
    height = TOP + HEIGHT * len(between) + 16
    parts = [state_line(states.index(state), state, height, bold=state in (begin, *ends)) for state in states]
    for row, ((source, target), labels) in enumerate(between.items()):
        parts.append(arrow(states.index(source), states.index(target), TOP + HEIGHT * (row + 1), ", ".join(labels)))
    words = f"It begins with {begin} and ends with {' or '.join(ends)}."
    return (
        f'<div class="lifecycle"><svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{words}" '
        f'viewBox="0 0 {WIDTH * len(states)} {height}" style="max-width:100%;font:13px sans-serif">'
        f"{''.join(parts)}</svg><p>{words}</p></div>"
    )


def middle(column: int) -> int:
    return WIDTH * column + WIDTH // 2


def state_line(column: int, name: str, height: int, *, bold: bool) -> str:
    at, weight = middle(column), "bold" if bold else "normal"
    return (
        f'<line x1="{at}" y1="{TOP - 12}" x2="{at}" y2="{height}" style="{COLOURS};opacity:.3"/>'
        f'<rect x="{at - 58}" y="8" width="116" height="26" rx="6" style="{COLOURS}"/>'
        f'<text x="{at}" y="25" text-anchor="middle" style="fill:currentColor;font-weight:{weight}">'
        f"{escape(name)}</text>"
    )


def arrow(source: int, target: int, y: int, label: str) -> str:
    """From line to line; round and back where nothing changes, on the side where there is room for the words."""
    begin, end = middle(source), middle(target)
    side = 1 if end > begin or (end == begin and source < 4) else -1
    if source == target:
        path, tip, words, dot = f"M{begin},{y - 12} h{22 * side} v12 h{-18 * side}", side, begin + 28 * side, y - 12
    else:
        path, tip, words, dot = f"M{begin},{y} H{end - 4 * side}", -side, begin + 8 * side, y
    anchor = "start" if side > 0 else "end"
    return (
        f'<circle cx="{begin}" cy="{dot}" r="3" style="fill:currentColor"/><path d="{path}" style="{COLOURS}"/>'
        f'<path d="M{end},{y} l{8 * tip},-4 v8 z" style="fill:currentColor"/>'
        f'<text x="{words}" y="{y - 5}" text-anchor="{anchor}" style="fill:currentColor">{escape(label)}</text>'
    )
