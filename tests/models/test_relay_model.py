from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.models import BadModelName, ModelError, ModelUnavailable, open_model
from tilewright.models.protocol import MOST_REPLY_BYTES, ReplyTooLarge
from tilewright.models.relay_model import RelayModel
from tilewright.records import Message, Question, Reply, Role, StopReason, Usage

QUESTION = Question(
    "0003-1",
    "You write kernels.",
    (Message(Role.USER, "a draft"), Message(Role.ASSISTANT, "so?"), Message(Role.USER, "make it faster")),
)
OTHER = replace(QUESTION, messages=(Message(Role.USER, "make it right"),))


def relay(directory: Path, **options: object) -> RelayModel:
    return RelayModel(directory, **{"say": lambda text: None, "poll_s": 0.02, "timeout_s": 300.0, **options})  # type: ignore[arg-type]


def put(path: Path, text: str) -> None:
    writing = path.with_suffix(".tmp")
    writing.write_text(text)
    writing.rename(path)


@contextmanager
def answering(directory: Path, answer: Callable[[str], None]) -> Iterator[None]:
    """Somebody who waits for the prompt, reads it, and answers."""

    def work() -> None:
        prompt = directory / "0003-1.prompt.md"
        while not prompt.exists():
            time.sleep(0.01)
        answer(prompt.read_text())

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def ask(model: RelayModel, question: Question = QUESTION) -> tuple[Reply, list[str]]:
    texts: list[str] = []
    return model.complete(question, texts.append), texts


def test_a_question_is_answered_through_files(tmp_path: Path) -> None:
    notices: list[str] = []
    prompts: list[str] = []

    def answer(prompt: str) -> None:
        prompts.append(prompt)
        put(tmp_path / "0003-1.reply.md", "a faster kernel")

    with answering(tmp_path, answer):
        reply, texts = ask(relay(tmp_path, say=notices.append))
    assert reply.text == "a faster kernel"
    assert texts == ["a faster kernel"]
    assert (reply.stop, reply.dollars, reply.retries) == (StopReason.END, 0.0, 0)
    asked = len("You write kernels.a draftso?make it faster")
    assert reply.usage == Usage(input_tokens=-(-asked // 4), output_tokens=4)
    assert reply.model == f"relay:{tmp_path}"
    (prompt,) = prompts
    assert str(tmp_path / "0003-1.reply.md") in prompt
    for part in ("You write kernels.", "a draft", "so?", "make it faster"):
        assert part in prompt
    assert prompt.index("You write") < prompt.index("a draft") < prompt.index("so?") < prompt.index("make it faster")
    assert len(notices) == 1
    assert "0003-1.prompt.md" in notices[0]
    assert sorted(path.name for path in tmp_path.glob("*.md")) == ["0003-1.prompt.md", "0003-1.reply.md"]


def test_a_reply_to_the_same_question_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, lambda prompt: put(tmp_path / "0003-1.reply.md", "one")):
        ask(relay(tmp_path))
    notices: list[str] = []
    before = (tmp_path / "0003-1.prompt.md").stat().st_mtime_ns
    looks: list[float] = []
    monkeypatch.setattr(time, "sleep", looks.append)
    reply, _ = ask(relay(tmp_path, say=notices.append))
    assert reply.text == "one"
    assert looks == [0.02]  # once more, as it might have been growing
    assert notices == []
    assert (tmp_path / "0003-1.prompt.md").stat().st_mtime_ns == before


def test_a_reply_to_another_question_is_moved_aside(tmp_path: Path) -> None:
    with answering(tmp_path, lambda prompt: put(tmp_path / "0003-1.reply.md", "one")):
        ask(relay(tmp_path))
    notices: list[str] = []
    with pytest.raises(ModelUnavailable, match="nobody wrote"):
        ask(relay(tmp_path, timeout_s=0.1, say=notices.append), OTHER)
    assert notices[0] == f"the question has changed, so the reply to the earlier one is now {tmp_path}/0003-1.old-1.md"
    assert not (tmp_path / "0003-1.reply.md").exists()
    assert (tmp_path / "0003-1.old-1.md").read_text() == "one"
    assert "make it right" in (tmp_path / "0003-1.prompt.md").read_text()
    put(tmp_path / "0003-1.reply.md", "two")
    assert ask(relay(tmp_path), OTHER)[0].text == "two"
    with pytest.raises(ModelUnavailable):
        ask(relay(tmp_path, timeout_s=0.1), QUESTION)
    assert (tmp_path / "0003-1.old-2.md").read_text() == "two"


def test_a_reply_that_was_there_before_any_question_is_not_taken(tmp_path: Path) -> None:
    put(tmp_path / "0003-1.reply.md", "of some other day")
    with pytest.raises(ModelUnavailable):
        ask(relay(tmp_path, timeout_s=0.1))
    assert (tmp_path / "0003-1.old-1.md").read_text() == "of some other day"


def test_a_reply_that_is_still_being_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["piece "] * 10

    def between_two_looks(seconds: float) -> None:
        if pieces:
            with (tmp_path / "0003-1.reply.md").open("a") as file:
                file.write(pieces.pop())

    monkeypatch.setattr(time, "sleep", between_two_looks)
    reply, _ = ask(relay(tmp_path))
    assert reply.text == "piece " * 10


def test_an_empty_file_is_no_reply_yet(tmp_path: Path) -> None:
    def answer(prompt: str) -> None:
        (tmp_path / "0003-1.reply.md").touch()
        time.sleep(0.2)
        (tmp_path / "0003-1.reply.md").write_text("now")

    with answering(tmp_path, answer):
        assert ask(relay(tmp_path))[0].text == "now"


def test_a_reply_that_is_not_text(tmp_path: Path) -> None:
    def answer(prompt: str) -> None:
        (tmp_path / "0003-1.reply.md").write_bytes(b"\xff\xfe\x00")

    with answering(tmp_path, answer), pytest.raises(ModelError, match="cannot be read as UTF-8"):
        ask(relay(tmp_path))


def test_a_question_with_odd_characters(tmp_path: Path) -> None:
    odd = replace(QUESTION, system="größer ≤ 名前\r\nQuestion: sha256 " + "0" * 64)
    with answering(tmp_path, lambda prompt: put(tmp_path / "0003-1.reply.md", "ja ≤")):
        assert ask(relay(tmp_path), odd)[0].text == "ja ≤"
    assert ask(relay(tmp_path, timeout_s=1.0), odd)[0].text == "ja ≤"


@pytest.mark.parametrize("name", ["../up", "a/b", ""])
def test_an_id_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names files"):
        ask(relay(tmp_path), replace(QUESTION, id=name))


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadModelName, match="cannot be made a directory"):
        open_model(f"relay:{tmp_path / 'file'}")


def test_an_interrupt_ends_the_waiting_and_the_question_stays(tmp_path: Path) -> None:
    program = f"""
from tilewright.models import open_model
from tilewright.records import Message, Question, Role
try:
    open_model("relay:{tmp_path}").complete(Question("0001-1", "s", (Message(Role.USER, "u"),)), print)
except KeyboardInterrupt:
    print("interrupted")
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert "waiting for" in child.stderr.readline()
    os.kill(child.pid, signal.SIGINT)
    output, notices = child.communicate(timeout=300)
    assert (output, notices) == ("interrupted\n", "")
    assert (tmp_path / "0001-1.prompt.md").exists()


def test_a_directory_is_one_run_s_at_a_time(tmp_path: Path) -> None:
    put(tmp_path / "0003-1.reply.md", "to another question")
    first, second = relay(tmp_path), relay(tmp_path, timeout_s=0.01)
    with pytest.raises(ModelUnavailable), answering(tmp_path, lambda prompt: None):
        relay(tmp_path, timeout_s=0.1).complete(QUESTION, lambda text: None)
    put(tmp_path / "0003-1.reply.md", "so")
    assert ask(first)[0].by_person
    with pytest.raises(ModelError, match="in use by another run"):
        ask(second)
    first.close()
    assert ask(second)[0].text == "so"


@pytest.mark.parametrize("size", [MOST_REPLY_BYTES + 1, 400 << 20])
def test_a_huge_reply_is_refused_without_being_read(tmp_path: Path, size: int) -> None:
    with (tmp_path / "0003-1.reply.md").open("wb") as file:
        file.truncate(size)
    model = relay(tmp_path)
    model._ask = lambda question: None  # type: ignore[method-assign]  # it lies there already
    tracemalloc.start()
    try:
        with pytest.raises(ReplyTooLarge, match=r"reply\.md has \d+ MiB or more, and a reply may have 4 MiB; send"):
            ask(model)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    model.close()
