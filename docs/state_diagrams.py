"""An mkdocs hook that renders Mermaid state diagrams as inline SVG, so that the site loads no script.

Every state is a vertical line, and every transition an arrow between two lines, labelled with its events.
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
    return FENCE.sub(lambda match: render(match["diagram"]), markdown)


def render(diagram: str) -> str:
    """Render a diagram as SVG. Transitions between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, target, label in ARROW.findall(diagram):
        arrows.setdefault((source, target), []).append(label)
    states = list(dict.fromkeys(source for source, _ in arrows if source != EDGE))
    ends = [source for source, target in arrows if target == EDGE]
    (initial,) = [target for source, target in arrows if source == EDGE]
    between = {pair: labels for pair, labels in arrows.items() if EDGE not in pair}
    height = TOP + HEIGHT * len(between) + 16
    parts = [render_state(states.index(state), state, height, bold=state in (initial, *ends)) for state in states]
    for row, ((source, target), labels) in enumerate(between.items()):
        parts.append(
            render_arrow(states.index(source), states.index(target), TOP + HEIGHT * (row + 1), ", ".join(labels))
        )
    caption = f"The initial state is {initial}, the final state {' or '.join(ends)}."
    return (
        f'<div class="lifecycle"><svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{caption}" '
        f'viewBox="0 0 {WIDTH * len(states)} {height}" style="max-width:100%;font:13px sans-serif">'
        f"{''.join(parts)}</svg><p>{caption}</p></div>"
    )


def centre(column: int) -> int:
    return WIDTH * column + WIDTH // 2


def render_state(column: int, name: str, height: int, *, bold: bool) -> str:
    x, weight = centre(column), "bold" if bold else "normal"
    return (
        f'<line x1="{x}" y1="{TOP - 12}" x2="{x}" y2="{height}" style="{COLOURS};opacity:.3"/>'
        f'<rect x="{x - 58}" y="8" width="116" height="26" rx="6" style="{COLOURS}"/>'
        f'<text x="{x}" y="25" text-anchor="middle" style="fill:currentColor;font-weight:{weight}">'
        f"{escape(name)}</text>"
    )


def render_arrow(source: int, target: int, y: int, label: str) -> str:
    """Render a transition; one to the same state is a loop on the side that has space for the label."""
    start, end = centre(source), centre(target)
    side = 1 if end > start or (end == start and source < 4) else -1
    if source == target:
        path, tip, label_x, dot_y = f"M{start},{y - 12} h{22 * side} v12 h{-18 * side}", side, start + 28 * side, y - 12
    else:
        path, tip, label_x, dot_y = f"M{start},{y} H{end - 4 * side}", -side, start + 8 * side, y
    anchor = "start" if side > 0 else "end"
    return (
        f'<circle cx="{start}" cy="{dot_y}" r="3" style="fill:currentColor"/><path d="{path}" style="{COLOURS}"/>'
        f'<path d="M{end},{y} l{8 * tip},-4 v8 z" style="fill:currentColor"/>'
        f'<text x="{label_x}" y="{y - 5}" text-anchor="{anchor}" style="fill:currentColor">{escape(label)}</text>'
    )
