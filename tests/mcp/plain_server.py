"""A server for the tests with nothing but the standard library, so that it starts at once and misbehaves as it is told.

As a script it speaks over its standard streams, with ``http PORT`` over a socket. It notes every call in the file that
the variable JOURNAL names, and offers the tools in the file that TOOLS names, if that is set, beside its own.
"""

import base64
import json
import os
import signal
import sys
import time

NAME = os.environ.get("SHOP_NAME", "shop")
HANGING = object()


def note(what):
    if journal := os.environ.get("JOURNAL"):
        with open(journal, "a") as file:
            file.write(what + "\n")


def text(said, **more):
    return {"content": [{"type": "text", "text": said}], **more}


def stock(item):
    note(f"stock {item}")
    return text(f"{NAME} has 3 of {item}")


def refund(order, amount=1.0):
    note(f"refund {order}")
    return text(f"refunded {amount:g} for {order}")


def weigh(item):
    found = {"item": item, "grams": 250}
    return text(json.dumps(found), structuredContent=found)


def hang():
    note("hang")
    return HANGING


def die(order):
    note(f"die {order}")
    os.kill(os.getpid(), signal.SIGKILL)


def die_once():
    note("die_once")
    with open(os.environ["JOURNAL"]) as journal:
        if journal.read().count("die_once") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return text("survived")


def mute():
    """Closes the standard output, and lives on."""
    os.close(1)
    return HANGING


def grow():
    TOOLS["fresh"] = (lambda: text("fresh"), {}, None)
    changed(1)
    return text("grown")


def flood(megabytes):
    for _ in range(megabytes * 16):
        sys.stderr.write("x" * 65535 + "\n")
    sys.stderr.flush()
    return text("flooded")


def long(megabytes):
    return text("x" * (megabytes * 2**20))


def changed(times):
    """Says so many times that the list of tools has changed."""
    write((json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) + "\n").encode() * times)
    return text("changed")


def say(code, answer=True):
    """Writes whatever it is told, in base64, and then answers."""
    write(base64.b64decode(code))
    return text("said") if answer else HANGING


def answer(result):
    """Answers just that."""
    return result


WORD, READS = {"type": "string"}, {"readOnlyHint": True}
AMOUNT = {"type": "number", "default": 1.0}
TOOLS = {
    "stock": (stock, {"item": WORD}, READS),
    "refund": (refund, {"order": WORD, "amount": AMOUNT}, {"destructiveHint": True}),
    "broken": (lambda: text("the drawer is stuck", isError=True), {}, None),
    "weigh": (weigh, {"item": WORD}, {"idempotentHint": True}),
    "hang": (hang, {}, None),
    "die": (die, {"order": WORD}, None),
    "die_once": (die_once, {}, READS),
    "mute": (mute, {}, None),
    "grow": (grow, {}, None),
    "flood": (flood, {"megabytes": {"type": "integer"}}, None),
    "long": (long, {"megabytes": {"type": "integer"}}, READS),
    "changed": (changed, {"times": {"type": "integer"}}, None),
    "say": (say, {"code": WORD, "answer": {"type": "boolean", "default": True}}, None),
    "answer": (answer, {"result": {"type": "object"}}, None),
    "seen": (None, {}, None),
}


def tools():
    found = []
    for name, (_, properties, hints) in TOOLS.items():
        required = [key for key, schema in properties.items() if "default" not in schema]
        schema = {"type": "object", "properties": properties, "required": required}
        found.append({"name": name, "inputSchema": schema, **({"annotations": hints} if hints else {})})
    if more := os.environ.get("TOOLS"):
        with open(more) as file:
            return found + json.load(file)
    return found


def call(params):
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "seen":
        return text(str(params.get("_meta", {}).get("tenant")))
    if name not in TOOLS:
        return text(f"there is no {name}", isError=True)
    return TOOLS[name][0](**arguments)


def handle(method, params):
    """The result of a request; ``None`` when it is refused."""
    match method:
        case "initialize":
            about = {"name": NAME, "version": "1"}
            can = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
            return {"protocolVersion": params["protocolVersion"], "capabilities": can, "serverInfo": about}
        case "tools/list":
            note("list")
            if "shy" in sys.argv:
                return HANGING
            if "endless" in sys.argv:
                return {"tools": tools(), "nextCursor": "again"}
            return {"tools": tools()}
        case "tools/call":
            return call(params)
        case "prompts/list":
            return {"prompts": [{"name": "greet"}]}
        case "prompts/get" if params["name"] == "greet":
            said = f"Greet {params['arguments']['name']} warmly."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
    return None


def reply(message):
    """What is to be answered to a message, if anything."""
    if "id" not in message or "method" not in message:
        if message.get("method") == "notifications/cancelled":
            note("cancelled")
        return None
    found = handle(message["method"], message.get("params") or {})
    if found is HANGING:
        return None
    outcome = {"error": {"code": -32601, "message": "unheard of"}} if found is None else {"result": found}
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def serve_lines():
    if "family" in sys.argv:
        import subprocess

        note(f"started {subprocess.Popen(['sleep', '600']).pid}")
    if "noisy" in sys.argv:
        print("welcome to the shop", flush=True)
    for line in sys.stdin:
        answered = reply(json.loads(line))
        if answered is not None:
            write(json.dumps(answered).encode() + b"\n")


def serve_http(port):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    sessions = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            session = self.headers.get("mcp-session-id")
            if message["method"] == "initialize":
                session = os.urandom(8).hex()
                sessions.add(session)
            if self.path != "/mcp" or session not in sessions:
                return self.answer(401 if "secret" in self.path else 404)
            if message.get("params", {}).get("name") == "say":
                said = message["params"]["arguments"]
                return self.answer(said["status"], base64.b64decode(said["code"]), session, said["kind"])
            found = reply(message)
            if found is None and "id" in message:
                time.sleep(600)
            return self.answer(202) if found is None else self.answer(200, json.dumps(found).encode(), session)

        def do_GET(self):
            self.answer(401 if "secret" in self.path else 405)

        def do_DELETE(self):
            self.answer(200)

        def answer(self, status, body=b"", session=None, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if session is not None:
                self.send_header("mcp-session-id", session)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    if "http" in sys.argv:
        serve_http(int(sys.argv[-1]))
    note(f"started {os.getpid()}")
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "silent" in sys.argv:
        sys.stdin.read()
        sys.exit()
    if "crash" in sys.argv:
        sys.exit("no licence found")
    serve_lines()
    if "slow" in sys.argv:
        note("leaving")
        time.sleep(0.7)
    if "stubborn" in sys.argv:
        time.sleep(600)
