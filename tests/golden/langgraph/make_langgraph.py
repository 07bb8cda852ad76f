"""Write ``checkpoints_VERSION.json.gz`` with the installed LangGraph: what its savers store of a conversation.

Run it with the Python of a virtual environment with ``langgraph``, ``langgraph-checkpoint-sqlite`` and, for PostgreSQL,
``langgraph-checkpoint-postgres``, ``psycopg[binary]`` and the URL of an empty database::

    /tmp/lg/bin/python tests/golden/langgraph/make_langgraph.py postgresql://localhost/empty

Databases are kept as SQL and rows, with bytes in Base64, and beside them the messages that LangGraph reads from them.
"""

import base64
import gzip
import json
import sqlite3
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

FOLDER = Path(__file__).parent
IMAGE = "data:image/png;base64,iVBORw0KGgo="


def answer(state: MessagesState) -> dict[str, Any]:
    last = state["messages"][-1]
    if last.text == "What is 3 + 4?":
        call = {"name": "add", "args": {"a": 3, "b": 4}, "id": "call_1"}
        messages: list[Any] = [
            AIMessage("Let me see.", tool_calls=[call]),
            ToolMessage("7", tool_call_id="call_1", name="add"),
            AIMessage([{"type": "text", "text": "It is 7. é"}, {"type": "reasoning", "reasoning": "3 + 4"}]),
        ]
        return {"messages": messages}
    return {"messages": [AIMessage(f"You said: {last.text[:20]}")]}


def talk(saver: Any) -> dict[str, Any]:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=saver)
    for thread, turns in {
        "ann": [[SystemMessage("Be brief."), HumanMessage("What is 3 + 4?")], [HumanMessage("Thanks")]],
        "bob": [[HumanMessage([{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": IMAGE}}])]],
    }.items():
        for turn in turns:
            graph.invoke({"messages": turn}, {"configurable": {"thread_id": thread}})
    return {
        thread: [
            [message.type, message.text]
            for message in graph.get_state({"configurable": {"thread_id": thread}}).values["messages"]
        ]
        for thread in ("ann", "bob")
    }


def to_json(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    return value


def make_sqlite(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as db:
        threads = talk(SqliteSaver(db))
        return {"threads": threads, "sql": list(db.iterdump())}


def make_postgres(url: str) -> dict[str, Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        threads = talk(saver)
        tables: dict[str, Any] = {}
        for table in ("checkpoints", "checkpoint_blobs"):
            with saver.conn.cursor() as cursor:
                rows = cursor.execute(f"SELECT * FROM {table}").fetchall()
            tables[table] = [{name: to_json(value) for name, value in row.items()} for row in rows]
    return {"threads": threads, "tables": tables}


def main() -> None:
    with TemporaryDirectory() as folder:
        made = {"sqlite": make_sqlite(Path(folder) / "checkpoints.db")}
    if len(sys.argv) > 1:
        made["postgres"] = make_postgres(sys.argv[1])
    text = json.dumps(made)
    name = f"checkpoints_{version('langgraph')}.json.gz"
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(name, len(text), {kind: found["threads"] for kind, found in made.items()})


if __name__ == "__main__":
    main()
