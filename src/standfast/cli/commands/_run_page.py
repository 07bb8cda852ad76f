"""A run as one HTML page that loads nothing, runs no scripts, and opens without a server."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec

from standfast.base.items import Item
from standfast.base.text import format_arguments, make_visible
from standfast.cli.commands._output import format_time
from standfast.runtime.types import Approval, Event, RunInfo, RunStep

MAX_TEXT = 20_000
"""Of one text; the rest of it is left out, with a note."""
KINDS = {"model.": "model", "calls.": "tool", "approval.": "wait", "run.waiting": "wait", "run.failed": "trouble"}
STYLE = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif;background:light-dark(#fbfbfa,#16181a);
color:light-dark(#1c2022,#e4e6e7);--line:light-dark(#dfe1e0,#2e3236);--quiet:light-dark(#565d60,#a2a9ae);
--accent:light-dark(#17636c,#6cc3cd);--good:light-dark(#22662f,#82cf90);--warn:light-dark(#7d4e00,#f0bd6a);
--danger:light-dark(#a8281f,#ff9a90);--sunken:light-dark(#f1f2f1,#111315)}
body{max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.quiet{color:var(--quiet);font-size:.9rem}
.status{font-size:.8rem;border:1px solid var(--line);border-radius:1rem;padding:.1rem .6rem;vertical-align:middle}
ol,ul{list-style:none;margin:0;padding:0}
pre{margin:.2rem 0;white-space:pre-wrap;font:.92em/1.45 ui-monospace,monospace}
.item{border-left:3px solid var(--line);padding:.1rem 0 .1rem .8rem;margin:.6rem 0}
.user{border-color:var(--accent)}.assistant{border-color:var(--good)}
.event{border-left:3px solid var(--line);margin:1px 0}
.event>summary{display:grid;grid-template-columns:3rem 11rem minmax(0,1fr) 5rem;gap:.6rem;padding:.2rem .6rem;
cursor:pointer}
.event>summary>:nth-child(3){overflow:hidden;text-overflow:ellipsis;white-space:nowrap;color:var(--quiet)}
.event>summary>:is(:first-child,:last-child){text-align:right;color:var(--quiet);font-variant-numeric:tabular-nums}
.event>div{padding:.3rem .8rem .6rem;background:var(--sunken)}
.model{border-color:var(--accent)}.tool{border-color:var(--good)}.wait{border-color:var(--warn)}
.trouble{border-color:var(--danger)}
table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1rem .2rem 0;border-bottom:1px solid var(--line);
font-weight:400;vertical-align:top}
@media(max-width:40rem){.event>summary{grid-template-columns:2rem minmax(0,1fr) 4rem}.event>summary>:nth-child(3)
{display:none}}
"""


@dataclass(frozen=True)
class RunPage:
    """What the page of a run shows. ``variables`` and ``files`` are names with what is known of them."""

    info: RunInfo
    step: RunStep
    events: Sequence[Event]
    approvals: Sequence[Approval] = ()
    result: Any = None
    variables: Sequence[tuple[str, str]] = ()
    files: Sequence[tuple[str, str]] = ()

    def render(self) -> str:
        """Return the page. All text in it is escaped, and its policy forbids scripts and requests."""
        digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
        title = show(f"{self.info.agent} · {self.info.run_id}")
        return "".join(
            (
                '<!doctype html><html lang="en"><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width">',
                '<meta http-equiv="content-security-policy" content="default-src \'none\'; ',
                f"style-src 'sha256-{digest}'\"><title>{title}</title><style>{STYLE}</style><body>",
                *self._render_heading(),
                *self._render_conversation(),
                *self._render_timeline(),
                *self._render_approvals(),
                *render_table("Variables", self.variables),
                *render_table("Files", self.files),
                "</body></html>\n",
            )
        )

    def _render_heading(self) -> Iterator[str]:
        info, usage = self.info, self.step.usage
        yield f'<header><h1>{show(info.agent)} <span class="status">{show(info.status)}</span></h1>'
        facts = [info.run_id, f"started {format_time(info.created_at)}", f"{info.steps} steps"]
        facts.append(f"lasted {format_seconds(info.updated_at - info.created_at)}")
        if usage.get("requests"):
            facts.append(f"{usage['requests']} model calls")
        if usage.get("total_tokens"):
            facts.append(f"{usage.get('input_tokens', 0)} + {usage.get('output_tokens', 0)} tokens")
        if info.session_id:
            facts.append(f"session {info.session_id}")
        if info.parent:
            facts.append(f"forked from {info.parent}")
        yield f'<p class="quiet">{" · ".join(map(show, facts))}</p>'
        if info.reason is not None:
            yield f"<p>{show(info.reason.message)}</p>"
        yield "</header>"

    def _render_conversation(self) -> Iterator[str]:
        given = self.step.input
        items = [one.item for one in self.step.items]
        if not items:  # it has not begun
            items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        yield "<h2>Conversation</h2>"
        yield from render_items(items)
        if self.result is not None and not isinstance(self.result, str):
            yield f"<h2>Result</h2><pre>{show_json(self.result)}</pre>"

    def _render_timeline(self) -> Iterator[str]:
        yield "<h2>Timeline</h2>"
        before = self.events[0].at if self.events else 0.0
        for event in self.events:
            kind = next((kind for prefix, kind in KINDS.items() if event.type.startswith(prefix)), "")
            items = [one for one in event.data.get("items") or () if isinstance(one, dict)]
            text = " · ".join(describe_item(one)[2] for one in items) or describe_facts(event.data)
            yield f'<details class="event {kind}"><summary><span>{event.seq}</span><b>{show(event.type)}</b>'
            yield f"<span>{show(' '.join(text[:300].split()))}</span><span>+{format_seconds(event.at - before)}</span>"
            yield "</summary><div>"
            yield from render_items(items)
            yield f'<p class="quiet">{format_time(event.at)}</p><pre>{show_json(event.data)}</pre></div></details>'
            before = event.at

    def _render_approvals(self) -> Iterator[str]:
        if not self.approvals:
            return
        yield "<h2>Approvals</h2>"
        for one in self.approvals:
            decision = [one.status, f"by {one.decided_by}" if one.decided_by else "", one.message or ""]
            yield f'<div class="item"><b>{show(one.tool)}</b> {show(" ".join(filter(None, decision)))}'
            yield f"<pre>{show(format_arguments(one.arguments))}</pre>"
            if one.edited:
                yield f"<p>edited to</p><pre>{show(format_arguments(one.edited))}</pre>"
            yield "</div>"


def render_items(items: Iterable[Item]) -> Iterator[str]:
    yield "<ol>"
    for item in items:
        who, kind, text = describe_item(item)
        yield f'<li class="item {kind}"><span class="quiet">{show(who)}</span><pre>{show(text)}</pre></li>'
    yield "</ol>"


def render_table(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        cells = "".join(f'<tr><th scope="row">{show(name)}<td class="quiet">{show(fact)}' for name, fact in rows)
        yield f"<h2>{title}</h2><table>{cells}</table>"


def describe_item(item: Item) -> tuple[str, str, str]:
    """Return who an item is from, its kind as a class of the page, and its text."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = str(item.get("role", "message"))
        return role, role if role in ("user", "assistant") else "", describe_content(item.get("content"))
    if kind == "function_call":
        return f"calls {item.get('name')}", "", describe_arguments(str(item.get("arguments") or ""))
    if str(kind).endswith("_output"):
        return "output", "", describe_content(item.get("output"))
    return str(kind), "", json.dumps(item, ensure_ascii=False, default=str)


def describe_arguments(arguments: str) -> str:
    """Return the arguments of a call, one below the other, with texts such as code as they are."""
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(decoded, dict):
        return arguments
    shown = (
        (name, one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)) for name, one in decoded.items()
    )
    return "\n".join(f"{name}: {one}" if "\n" not in one else f"{name}:\n{one}" for name, one in shown)


def describe_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
    texts = [one.get("text") or one.get("transcript") if isinstance(one, dict) else None for one in content]
    return "\n".join(text if isinstance(text, str) else "[…]" for text in texts)


def describe_facts(data: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in data.items() if isinstance(value, str | int | float))


def show(text: str) -> str:
    """Return text as HTML: nothing in it is markup, and nothing is hidden or reordered."""
    rest = len(text) - MAX_TEXT
    shown = make_visible(text[:MAX_TEXT], multiline=True)
    return escape(shown if rest <= 0 else f"{shown}… and {rest} characters more")


def show_json(value: Any) -> str:
    return show(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
