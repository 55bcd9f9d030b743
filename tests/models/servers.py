"""Local servers that speak the real protocols, scripted: what they reply, and how they fail on the way.

    with AnthropicServer(lambda body: "hello", troubles=[Status(529), Cut(2)]) as server:
        open_model("anthropic:claude-sonnet-5", base_url=server.base_url, ...)

The n-th request meets the n-th trouble; where that is None, or none is left, it is answered well. Every request is kept
in `requests`.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A reply with its ending. `stop` is the protocol's own word; the counts are sent as usage."""

    text: str
    stop: str = ""  # "": the protocol's word for a normal end
    input_tokens: int = 100
    output_tokens: int = 20
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    refusal: str = ""  # what the protocol sends apart from the text to explain a refusal
    reasoning: str = ""  # thinking, sent apart from the text
    with_usage: bool = True


@dataclass(frozen=True)
class Status:
    """An HTTP error."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None  # a string is sent as it is, anything else as JSON


@dataclass(frozen=True)
class Cut:
    """The connection is lost after `events` events: by an abort, or by an end that looks orderly."""

    events: int
    orderly: bool = False


@dataclass(frozen=True)
class ErrorEvent:
    """An error sent as an event of the stream, after `events` good ones."""

    events: int
    kind: str
    message: str = "something went wrong"


@dataclass(frozen=True)
class Garbage:
    """Malformed JSON within the stream, after `events` good events."""

    events: int


@dataclass(frozen=True)
class Silence:
    """Nothing for that long, then a good answer."""

    seconds: float


Trouble = Status | Cut | ErrorEvent | Garbage | Silence
Replies = Callable[[dict[str, Any]], str | Answer]


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at_s: float


class ScriptedServer:
    """What both protocols share. `replies` is given the request's JSON body and is called once per good answer."""

    def __init__(
        self, replies: Replies, troubles: Sequence[Trouble | None] = (), *, piece: int = 4, pause_s: float = 0.0
    ) -> None:
        self.replies = replies
        self.troubles = list(troubles)
        self.requests: list[Request] = []
        self.piece = piece  # characters per event
        self.pause_s = pause_s  # between events
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> ScriptedServer:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                scripted._serve(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base_url(self) -> str:
        raise NotImplementedError

    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        """The server-sent events of an answer."""
        raise NotImplementedError

    def error_event(self, kind: str, message: str) -> str:
        raise NotImplementedError

    def complaint(self, body: dict[str, Any]) -> Status | None:
        """What this server rejects of itself; subclasses of tests say."""
        return None

    def pieces(self, text: str) -> Iterator[str]:
        for start in range(0, len(text), self.piece):
            yield text[start : start + self.piece]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self.requests.append(Request(handler.path, headers, body, time.monotonic()))
            trouble: Trouble | None = self.complaint(body)
            if trouble is None and self.troubles:
                trouble = self.troubles.pop(0)
        if isinstance(trouble, Status):
            self._send_status(handler, trouble)
            return
        if isinstance(trouble, Silence):
            time.sleep(trouble.seconds)
        try:
            self._stream(handler, body, trouble)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    @staticmethod
    def _send_status(handler: BaseHTTPRequestHandler, status: Status) -> None:
        content = (status.body if isinstance(status.body, str) else json.dumps(status.body or {})).encode()
        handler.send_response(status.code)
        for name, value in status.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "text/plain" if isinstance(status.body, str) else "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], trouble: Trouble | None) -> None:
        reply = self.replies(body)
        answer = Answer(reply) if isinstance(reply, str) else reply
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def send(text: str) -> None:
            content = text.encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            handler.wfile.flush()

        for number, event in enumerate(self.events(answer, body)):
            if trouble is not None and not isinstance(trouble, Status | Silence) and number == trouble.events:
                if isinstance(trouble, Cut):
                    self._cut(handler, trouble)
                    return
                send(
                    self.error_event(trouble.kind, trouble.message)
                    if isinstance(trouble, ErrorEvent)
                    else event.replace("}", "", 1)
                )
                continue
            send(event)
            time.sleep(self.pause_s)
        handler.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def _cut(handler: BaseHTTPRequestHandler, cut: Cut) -> None:
        if cut.orderly:
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True
        if not cut.orderly:
            handler.connection.shutdown(socket.SHUT_RDWR)


class AnthropicServer(ScriptedServer):
    """The Messages API, streamed."""

    @property
    def base_url(self) -> str:
        return self.address

    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        counted = {
            "input_tokens": answer.input_tokens,
            "cache_read_input_tokens": answer.cache_read_tokens,
            "cache_creation_input_tokens": answer.cache_write_tokens,
        }
        yield self._event(
            "message_start",
            message={
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**counted, "output_tokens": 1},
            },
        )
        yield self._event("ping")
        index = 0
        if answer.reasoning:
            yield from self._block(0, "thinking", "thinking_delta", "thinking", answer.reasoning)
            index = 1
        yield from self._block(index, "text", "text_delta", "text", answer.text)
        details = {"type": "refusal", "category": None, "explanation": answer.refusal} if answer.refusal else None
        yield self._event(
            "message_delta",
            delta={"stop_reason": answer.stop or "end_turn", "stop_sequence": None, "stop_details": details},
            usage={"output_tokens": answer.output_tokens},
        )
        yield self._event("message_stop")

    def _block(self, index: int, kind: str, delta: str, name: str, text: str) -> Iterator[str]:
        block = {"type": kind, name: "", **({"signature": ""} if kind == "thinking" else {})}
        yield self._event("content_block_start", index=index, content_block=block)
        for piece in self.pieces(text):
            yield self._event("content_block_delta", index=index, delta={"type": delta, name: piece})
        yield self._event("content_block_stop", index=index)

    def error_event(self, kind: str, message: str) -> str:
        return self._event("error", error={"type": kind, "message": message})

    @staticmethod
    def _event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


class OpenAIServer(ScriptedServer):
    """Chat completions, streamed. `rejects` are fields it answers with 400, as some servers do."""

    def __init__(
        self,
        replies: Replies,
        troubles: Sequence[Trouble | None] = (),
        *,
        piece: int = 4,
        pause_s: float = 0.0,
        rejects: Sequence[str] = (),
    ) -> None:
        super().__init__(replies, troubles, piece=piece, pause_s=pause_s)
        self.rejects = tuple(rejects)

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"

    def complaint(self, body: dict[str, Any]) -> Status | None:
        for name in self.rejects:
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                return Status(400, body={"error": {"message": message, "type": "invalid_request_error", "param": name}})
        return None

    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        yield self._chunk(body, [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        deltas = [{"reasoning_content": piece} for piece in self.pieces(answer.reasoning)]
        deltas += [{"refusal": piece} for piece in self.pieces(answer.refusal)]
        deltas += [{"content": piece} for piece in self.pieces(answer.text)]
        for delta in deltas:
            yield self._chunk(body, [{"index": 0, "delta": delta, "finish_reason": None}])
        yield self._chunk(body, [{"index": 0, "delta": {}, "finish_reason": answer.stop or "stop"}])
        if answer.with_usage and body.get("stream_options", {}).get("include_usage"):
            asked = answer.input_tokens + answer.cache_read_tokens + answer.cache_write_tokens
            yield self._chunk(
                body,
                [],
                usage={
                    "prompt_tokens": asked,
                    "completion_tokens": answer.output_tokens,
                    "total_tokens": asked + answer.output_tokens,
                    "prompt_tokens_details": {
                        "cached_tokens": answer.cache_read_tokens,
                        "cache_write_tokens": answer.cache_write_tokens,
                    },
                },
            )
        yield "data: [DONE]\n\n"

    def error_event(self, kind: str, message: str) -> str:
        return f"data: {json.dumps({'error': {'type': kind, 'message': message}})}\n\n"

    @staticmethod
    def _chunk(body: dict[str, Any], choices: list[dict[str, Any]], **more: Any) -> str:
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        return f"data: {json.dumps({**chunk, 'choices': choices, **more})}\n\n"
