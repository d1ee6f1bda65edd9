"""A W&B server of one sweep on this machine: it answers what the client asks, and keeps what it said.

It hands the given trials to agents, one at a heartbeat, then tells them to end.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4  # a key of the right form
SWEEP = "sw123456"


class Server(ThreadingHTTPServer):
    """Answers GraphQL; `calls` are the operations asked for, with their variables."""

    def __init__(self, trials: list[dict[str, Any]] | None = None, *, refuses: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.trials, self.refuses, self.agents = list(trials or []), refuses, 0
        self.calls: list[tuple[str, dict[str, Any], str]] = []
        self.streamed: list[dict[str, Any]] = []  # what runs sent: rows, summary, exit code
        self.started: list[str] = []  # ids of the runs that agents got
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [variables for name, variables, _ in self.calls if name == operation]

    def lines(self, file: str) -> list[dict[str, Any]]:
        """What runs sent of a file, such as their rows."""
        parts = [said.get("files", {}).get(file, {}).get("content", []) for said in self.streamed]
        return [json.loads(line) for part in parts for line in part]

    def answer(self, operation: str, variables: dict[str, Any], query: str) -> dict[str, Any] | None:
        """The data of an operation; None if the server does not know it."""
        with self.lock:
            self.calls.append((operation, variables, query))
            if operation == "Viewer":
                who = {"id": "u", "username": "me", "entity": "me", "flags": "{}", "email": "me@example.org"}
                return {"viewer": who | {"teams": {"edges": []}}}
            if operation == "UpsertSweep":
                return {"upsertSweep": {"sweep": self.sweep(), "configValidationWarnings": []}}
            if operation == "SweepWithRuns":
                found = {"id": "s", "config": self.of("UpsertSweep")[-1]["config"], "runs": {"edges": []}}
                return {"project": {"sweep": self.sweep() | found}}
            if operation == "CreateAgent":
                self.agents += 1
                return {"createAgent": {"agent": {"id": f"agent{self.agents}"}}}
            if operation == "Heartbeat":
                beat = {"agent": {"id": variables["id"]}, "commands": self.commands(variables)}
                return {"agentHeartbeat": beat}
            if operation == "RunResumeStatus":
                return {"model": project() | {"bucket": None}}
            if operation == "UpsertBucket":
                return {"upsertBucket": {"bucket": self.bucket(variables), "inserted": True}}
        return None

    def sweep(self) -> dict[str, Any]:
        return {"name": SWEEP, "project": project()}

    def commands(self, variables: dict[str, Any]) -> str:
        busy = json.loads(variables["runState"])
        if not busy and self.trials:
            self.started.append(f"trial{len(self.started)}")
            arguments = {name: {"value": value} for name, value in self.trials.pop(0).items()}
            run = {
                "type": "run",
                "run_id": self.started[-1],
                "program": "scripts/train.py",
                "args": arguments,
            }
            return json.dumps([run])
        return json.dumps([] if busy else [{"type": "exit"}])

    def bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables.get("name") or "run"
        bucket = {"id": name, "name": name, "displayName": name, "description": "", "config": "{}"}
        return bucket | {"sweepName": SWEEP, "project": project(), "historyLineCount": 0}


def project() -> dict[str, Any]:
    return {"id": "p", "name": "toys", "entity": {"id": "e", "name": "me"}}


class Handler(BaseHTTPRequestHandler):
    """The HTTP side of it."""

    server: Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.path.startswith("/graphql"):
            if self.path.endswith("/file_stream"):
                self.server.streamed.append(json.loads(raw))
            return self.send({})
        said = json.loads(raw)
        found = re.search(r"(?:query|mutation)\s+(\w+)", said["query"])
        operation = found[1] if found else ""
        if self.server.refuses and operation != "Viewer":
            return self.send({"errors": [{"message": "permission denied"}]}, 403)
        data = self.server.answer(operation, said.get("variables") or {}, said["query"])
        if data is None:
            return self.send({"errors": [{"message": f"unknown operation {operation}"}]}, 400)
        return self.send({"data": data})

    def do_GET(self) -> None:
        self.send({}, 404)

    def send(self, tree: dict[str, Any], code: int = 200) -> None:
        text = json.dumps(tree).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...
