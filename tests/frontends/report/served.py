"""A real server over runs that the store wrote, and pages as a browser's parser sees them."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK, question, reply

from tilewright.frontends.cli.view import ViewServer, listening
from tilewright.frontends.report.site import chosen
from tilewright.records import Attempt
from tilewright.store import RunFolder, Store

EMPTY = {"meta", "link", "input", "br", "hr", "img"}


@dataclass
class Parsed(HTMLParser):
    """A page's elements and its text. Tags that do not match fail the test."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str]:
        return [one["href"] for tag, one in self.tags if tag == "a"]


def parsed(html: str) -> Parsed:
    page = Parsed()
    page.feed(html)
    page.close()
    assert not page.open, f"left open: {page.open}"
    return page


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def page(self) -> Parsed:
        return parsed(self.body)


@dataclass(frozen=True)
class Client:
    server: ViewServer

    @property
    def root(self) -> str:
        """What every address begins with."""
        return self.server.url.removesuffix(f"/{self.server.site.home}")

    def get(self, address: str, method: str = "GET", **headers: str) -> Answer:
        place, _, token = self.root.removeprefix("http://").partition("/")
        connection, address = http.client.HTTPConnection(place, timeout=300), f"/{token}{address}"
        with contextlib.closing(connection):
            connection.request(
                method, address, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read().decode("utf-8"))


@contextlib.contextmanager
def serving(home: Path, what: str | None = None) -> Iterator[Client]:
    with listening(chosen(what, Store(home))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()


def add(folder: RunFolder, one: Attempt, kernel: str, answer: str = "ok") -> None:
    place = folder.attempt(one.number)
    place.reply_to(1, question(one.number, text=f"write number {one.number}"), lambda _: reply(answer))
    place.save_text("kernel.cu", kernel)
    place.finish(one)


def made(home: Path, *attempts: Attempt) -> RunFolder:
    folder = Store(home).create_run(TASK, SETTINGS, ENVIRONMENT)
    for one in attempts:
        add(folder, one, f"// double it\n// version {one.number}\nint the_same;\n")
    return folder
