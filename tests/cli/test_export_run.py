"""``standfast export run``: a run as one page that needs no server."""

import asyncio
from html.parser import HTMLParser

import pytest

from standfast import Agent, FunctionModel, Runtime, function_tool
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, SessionPool

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x07" + "y" * 30_000


@function_tool(needs_approval=True)
def publish(html: str) -> str:
    """Publish a page."""
    return html


def respond(request):
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return f"Published {last['output']}"
    return FunctionModel.call("publish", html=HOSTILE)


@pytest.fixture
def run_id(url):
    async def make():
        agent = Agent("<b>editor", model=FunctionModel(respond), tools=[publish])
        async with Runtime.open(url, agents=[agent]) as rt:
            run = await rt.start("<b>editor", HOSTILE, session_id="<i>talk")
            [approval] = (await run.wait()).approvals
            await rt.decide(approval.id, "approve", arguments={"html": "edited"}, by="<u>ann")
            await run.wait()
            return run.id

    return asyncio.run(make())


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.text = set(), {}, ""
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data):
        self.text += data


def test_the_page_has_the_whole_run_and_nothing_in_it_is_markup(standfast, url, run_id, tmp_path):
    target = tmp_path / "run.html"
    answer = standfast("export", "run", run_id, "--html", "-o", str(target))
    assert answer.exit_code == 0, answer.output
    page = Page(target.read_text())
    for words in (
        "<b>editor",
        run_id,
        "session <i>talk",
        "Published edited",
        "approved by <u>ann",
        "approval.requested",
    ):
        assert words in page.text
    assert "</pre><script>alert(1)</script>" in page.text
    assert "characters more" in page.text
    assert page.tags.isdisjoint({"script", "img", "b>editor", "iframe", "link", "i", "u"})
    assert not any(name.startswith("on") or name in ("src", "href") for name in page.attributes)
    assert "default-src 'none'" in page.attributes["content"]
    assert "\u202e" not in target.read_text()
    conversation = page.text[page.text.index("Conversation") : page.text.index("Timeline")]
    assert conversation.count("user") == 1


def test_the_format_is_named_and_the_file_has_the_name_of_the_run(standfast, run_json, run_id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert standfast("export", "run", run_id).exit_code == 2
    written = run_json("export", "run", run_id, "--html")
    assert written == {"run": run_id, "file": f"{run_id}.html", "events": written["events"]}
    assert (tmp_path / written["file"]).exists()
    assert standfast("export", "run", "unknown", "--html").exit_code != 0


def test_variables_and_files_of_the_workspace_are_listed(standfast, url, tmp_path):
    from standfast import python_tool

    def compute(request):
        last = request.input[-1]
        code = "rain = [1, 2]\nopen('notes.txt', 'w').write('x')"
        return "done" if "output" in last else FunctionModel.call("run_python", code=code)

    async def make():
        session = SessionConfig(sandbox=SandboxPolicy(require="plain"))
        async with SessionPool(PoolConfig(session=session, min_idle=0, max_sessions=1)) as pool:
            agent = Agent("analyst", model=FunctionModel(compute), tools=[python_tool(pool)])
            async with Runtime.open(url, agents=[agent]) as rt:
                run = await rt.start("analyst", "Count the rain.", session_id="rain")
                await run.wait()
                return run.id

    target = tmp_path / "run.html"
    assert standfast("export", "run", asyncio.run(make()), "--html", "-o", str(target)).exit_code == 0
    text = Page(target.read_text()).text
    assert "notes.txt" in text
    assert "rain" in text[text.index("Variables") :]
