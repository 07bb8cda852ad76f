import asyncio
import io
import json
from pathlib import Path

from agents.sandbox import Manifest
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.session import (
    CallbackSink,
    EventPayloadPolicy,
    Instrumentation,
    JsonlOutboxSink,
    WorkspaceJsonlSink,
    event_to_json_line,
    validate_sandbox_session_event,
)


def show(event, session) -> None:
    data = json.loads(event_to_json_line(event))
    for name in ("event_id", "ts", "session_id", "span_id", "duration_ms"):
        data.pop(name, None)
    print(type(event).__name__, json.dumps(data, sort_keys=True))


async def main() -> None:
    policy = EventPayloadPolicy(include_exec_output=True, max_stdout_chars=3)
    outbox = Path("events/out.jsonl").absolute()
    sinks = [
        CallbackSink(show, payload_policy=policy),
        JsonlOutboxSink(outbox, mode="sync"),
        WorkspaceJsonlSink(mode="sync"),
    ]
    client = UnixLocalSandboxClient(instrumentation=Instrumentation(sinks=sinks))
    async with await client.create(manifest=Manifest(entries={"a": File(content=b"x")}), options=None) as session:
        await session.exec("echo hello; echo err >&2; exit 3")
        await session.write(Path("b"), io.BytesIO(b"hello"))
        (await session.read(Path("b"))).read()
        try:
            await session.read(Path("none"))
        except Exception as error:
            print(type(error).__name__)
        await session.running()
        listed = (await session.exec("ls logs | wc -l; wc -l < logs/*.jsonl")).stdout.split()
        print(listed)
    lines = outbox.read_text().splitlines()
    print([(event.seq, event.op, event.phase) for event in map(validate_sandbox_session_event, map(json.loads, lines))])


asyncio.run(main())
