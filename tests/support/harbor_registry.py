"""Harbor's hosted registry on loopback, for its own client."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Registry:
    """What the client sees of it: tables, procedures and files."""

    def __init__(self) -> None:
        self.datasets: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.packages: dict[str, tuple[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(json.loads(body) if body else None)

            def _answer(self, body: Any) -> None:
                parts = urlsplit(self.path)
                registry.asked.append(parts.path)
                content, kind = registry.answer(parts.path, parse_qs(parts.query), body)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[bytes | None, str]:
        if path in self.files:
            return self.files[path], "application/octet-stream"
        rows = self._rows(path.removeprefix("/rest/v1/"), query, body)
        return json.dumps(rows).encode(), "application/json"

    def _rows(self, table: str, query: dict[str, list[str]], body: Any) -> Any:
        if table == "rpc/get_dataset":
            tasks = self.datasets.get((body["p_name"], body["p_version"]))
            found = {"name": body["p_name"], "version": body["p_version"], "tasks": tasks, "metrics": []}
            return found if tasks is not None else None
        if table == "rpc/resolve_task_version":
            digest, _ = self.packages[body["p_name"]]
            return {"id": "t1", "archive_path": f"{body['p_name']}.tar.gz", "content_hash": digest}
        if table == "dataset":
            wanted = query.get("name", [""])[0].removeprefix("eq.")
            return [
                {"name": name, "version": version, "dataset_task": [{"count": len(tasks)}]}
                for (name, version), tasks in self.datasets.items()
                if wanted in ("", name)
            ]
        if table == "dataset_version_tag":
            if query["package.name"] != ["eq.greetings"]:
                return []
            version = {"id": "d1", "content_hash": "00", "description": ""}
            return [{"dataset_version": version, "package": {"name": "greetings"}}]
        if table == "dataset_version_task":
            package = {"org": {"name": "someone"}}
            return [
                {
                    "task_version_id": name,
                    "task_version": {"content_hash": digest, "package": {**package, "name": name}},
                }
                for name, (digest, _) in self.packages.items()
            ]
        return []
