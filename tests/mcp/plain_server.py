"""An MCP server that uses only the standard library, so that it starts at once and can violate the protocol.

As a script it uses the stdio transport, with ``http PORT`` a socket; other arguments make it misbehave. It writes its
calls to the file named by the variable SERVER_LOG, and offers the tools in the file named by TOOLS in addition to its
own; that file is read again for each listing.
"""

import base64
import json
import os
import signal
import sys
import time

NAME = os.environ.get("SHOP_NAME", "shop")
HANGING = object()


def write_log(line):
    if path := os.environ.get("SERVER_LOG"):
        with open(path, "a") as file:
            file.write(line + "\n")


def text_result(text, **fields):
    return {"content": [{"type": "text", "text": text}], **fields}


def stock(item):
    write_log(f"stock {item}")
    return text_result(f"{NAME} has 3 of {item}")


def refund(order, amount=1.0):
    write_log(f"refund {order}")
    return text_result(f"refunded {amount:g} for {order}")


def weigh(item):
    content = {"item": item, "grams": 250}
    return text_result(json.dumps(content), structuredContent=content)


def hang():
    write_log("hang")
    return HANGING


def die(order):
    write_log(f"die {order}")
    os.kill(os.getpid(), signal.SIGKILL)


def die_once():
    write_log("die_once")
    with open(os.environ["SERVER_LOG"]) as file:
        if file.read().count("die_once") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return text_result("survived")


def close_stdout():
    """Close the standard output and continue to run."""
    os.close(1)
    return HANGING


def add_tool():
    TOOLS["fresh"] = (lambda: text_result("fresh"), {}, None)
    notify_changes(1)
    return text_result("grown")


def flood_stderr(megabytes):
    for _ in range(megabytes * 16):
        sys.stderr.write("x" * 65535 + "\n")
    sys.stderr.flush()
    return text_result("flooded")


def long_text(megabytes):
    return text_result("x" * (megabytes * 2**20))


def notify_changes(times):
    """Send the notification that the list of tools has changed ``times`` times."""
    write((json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) + "\n").encode() * times)
    return text_result("changed")


def write_raw(code, answer=True):
    """Write bytes given in base64 to the standard output, then answer."""
    write(base64.b64decode(code))
    return text_result("written") if answer else HANGING


def return_raw(result):
    """Return ``result`` as it is, valid or not."""
    return result


WORD, READS = {"type": "string"}, {"readOnlyHint": True}
AMOUNT = {"type": "number", "default": 1.0}
TOOLS = {
    "stock": (stock, {"item": WORD}, READS),
    "refund": (refund, {"order": WORD, "amount": AMOUNT}, {"destructiveHint": True}),
    "broken": (lambda: text_result("the drawer is stuck", isError=True), {}, None),
    "weigh": (weigh, {"item": WORD}, {"idempotentHint": True}),
    "hang": (hang, {}, None),
    "die": (die, {"order": WORD}, None),
    "die_once": (die_once, {}, READS),
    "close_stdout": (close_stdout, {}, None),
    "add_tool": (add_tool, {}, None),
    "flood_stderr": (flood_stderr, {"megabytes": {"type": "integer"}}, None),
    "long_text": (long_text, {"megabytes": {"type": "integer"}}, READS),
    "notify_changes": (notify_changes, {"times": {"type": "integer"}}, None),
    "write_raw": (write_raw, {"code": WORD, "answer": {"type": "boolean", "default": True}}, None),
    "return_raw": (return_raw, {"result": {"type": "object"}}, None),
    "read_meta": (None, {}, None),
}


def list_tools():
    tools = []
    for name, (_, properties, hints) in TOOLS.items():
        required = [key for key, schema in properties.items() if "default" not in schema]
        schema = {"type": "object", "properties": properties, "required": required}
        tools.append({"name": name, "inputSchema": schema, **({"annotations": hints} if hints else {})})
    if more := os.environ.get("TOOLS"):
        with open(more) as file:
            return tools + json.load(file)
    return tools


def call(params):
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "read_meta":
        return text_result(str(params.get("_meta", {}).get("tenant")))
    if name not in TOOLS:
        return text_result(f"there is no {name}", isError=True)
    return TOOLS[name][0](**arguments)


def handle(method, params):
    """Return the result of a request, HANGING for no response, or None for an error."""
    match method:
        case "initialize":
            info = {"name": NAME, "version": "1"}
            capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
            return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            write_log("list")
            if "hang_on_list" in sys.argv:
                return HANGING
            if "endless_list" in sys.argv:
                return {"tools": list_tools(), "nextCursor": "again"}
            if "long_list" in sys.argv:
                tool = {"name": "wordy", "description": "x" * 2**20, "inputSchema": {"type": "object"}}
                return {"tools": [tool], "nextCursor": os.urandom(8).hex()}
            return {"tools": list_tools()}
        case "tools/call":
            return call(params)
        case "prompts/list":
            return {"prompts": [{"name": "greet"}]}
        case "prompts/get" if params["name"] == "greet":
            text = f"Greet {params['arguments']['name']} warmly."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
    return None


def respond(message):
    """Return the response to a message, or None."""
    if "id" not in message or "method" not in message:
        if message.get("method") == "notifications/cancelled":
            write_log("cancelled")
        return None
    result = handle(message["method"], message.get("params") or {})
    if result is HANGING:
        return None
    outcome = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def serve_lines():
    if "with_child" in sys.argv:
        import subprocess

        write_log(f"started {subprocess.Popen(['sleep', '600']).pid}")
    if "noisy" in sys.argv:
        print("welcome to the shop", flush=True)
    for line in sys.stdin:
        response = respond(json.loads(line))
        if response is not None:
            write(json.dumps(response).encode() + b"\n")


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
            if message.get("params", {}).get("name") == "write_raw":
                raw = message["params"]["arguments"]
                body, encoding = base64.b64decode(raw["code"]), raw.get("encoding")
                if raw.get("endless"):
                    return self.repeat(body, raw["kind"], encoding or "identity")
                return self.answer(raw["status"], body, session, raw["kind"], encoding)
            response = respond(message)
            if response is None and "id" in message:
                time.sleep(600)
            return self.answer(202) if response is None else self.answer(200, json.dumps(response).encode(), session)

        def do_GET(self):
            self.answer(401 if "secret" in self.path else 405)

        def do_DELETE(self):
            self.answer(200)

        def repeat(self, piece, kind, encoding):
            """Send the same bytes until the client hangs up."""
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Encoding", encoding)
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(piece)
            except OSError:
                write_log("hung up")
            self.close_connection = True

        def answer(self, status, body=b"", session=None, kind="application/json", encoding=None):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if encoding is not None:
                self.send_header("Content-Encoding", encoding)
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
    write_log(f"started {os.getpid()}")
    if "ignore_sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "no_response" in sys.argv:
        sys.stdin.read()
        sys.exit()
    if "crash" in sys.argv:
        sys.exit("no licence found")
    serve_lines()
    if "slow_exit" in sys.argv:
        write_log("leaving")
        while not os.path.exists(os.environ["SERVER_LOG"] + ".release"):
            time.sleep(0.02)
    if "ignore_sigterm" in sys.argv:
        time.sleep(600)
