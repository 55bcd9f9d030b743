"""A server that speaks as much of the Hub's API as publishing needs: repositories, branches, LFS, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    """The server and what it was given. `refuse` makes it answer every commit with an error."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.branches: set[str] = set()
        self.commits: dict[str, dict[str, bytes]] = {}  # by revision
        self.objects: dict[str, bytes] = {}  # LFS, by SHA-256
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.refuse = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                hub.post(self, self.path.partition("?")[0], self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.objects[hashlib.sha256(content).hexdigest()] = content
                hub.asked.append("PUT")
                answer(self, 200, {})

        return Handler

    def post(self, handler: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        self.asked.append(path)
        self.tokens.add(handler.headers.get("Authorization", ""))
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}" if given.get("organization") else given["name"]
            self.repositories[name] = given
            answer(handler, 200, {"url": f"{self.url}/kernels/{name}", "name": name})
        elif found := re.fullmatch(r"/api/kernels/[^/]+/[^/]+/branch/(\w+)", path):
            self.branches.add(found[1])
            answer(handler, 200, {})
        elif re.fullmatch(r"/api/kernels/[^/]+/[^/]+/preupload/\w+", path):
            files = json.loads(body)["files"]
            answer(handler, 200, {"files": [_upload_mode(one["path"]) for one in files]})
        elif path == "/api/validate-yaml":
            answer(handler, 200, {"errors": [], "warnings": []})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [self._lfs_object(one) for one in json.loads(body)["objects"]]
            answer(handler, 200, {"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/kernels/([^/]+/[^/]+)/commit/(\w+)", path):
            self._commit(handler, found[1], found[2], body)
        else:
            answer(handler, 404, {"error": f"no such place: {path}"})

    def _lfs_object(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.objects:
            return one
        return {**one, "actions": {"upload": {"href": f"{self.url}/upload/{one['oid']}"}}}

    def _commit(self, handler: BaseHTTPRequestHandler, repository: str, revision: str, body: bytes) -> None:
        if self.refuse:
            answer(handler, self.refuse, {"error": "you may not do this"})
            return
        files: dict[str, bytes] = {}
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        self.commits[revision] = files
        url = f"{self.url}/kernels/{repository}/commit/abc"
        answer(handler, 200, {"commitUrl": url, "commitOid": "a" * 40, "success": True})


def _upload_mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith((".so", ".cubin")) else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False}


def answer(handler: BaseHTTPRequestHandler, status: int, content: Any) -> None:
    text = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)
