"""Questions, replies, memos and texts of one attempt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.store.records_for_store import KERNEL_TEXT, PASSED, attempt, modelled, question, reply

from tilewright.records import Cut, Measurement, NoReply, Question, Reply, TuneResult, Usage, Verdict
from tilewright.store import AttemptFolder, Damaged


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    return AttemptFolder(tmp_path / "attempts" / "0003", 3)


class Asked:
    """Answers with what it was asked, and counts."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        return reply(f"answer to: {question.messages[-1].text}")


def test_a_reply_is_asked_for_once(folder: AttemptFolder) -> None:
    ask = Asked()
    first = folder.reply_to(1, question(3), ask)
    again = AttemptFolder(folder.path, 3).reply_to(1, question(3), ask)
    assert first == again == reply("answer to: write it")
    assert len(ask.questions) == 1
    assert folder.replies() == (first,)
    assert "write it" in (folder.path / "question-1.md").read_text()
    assert (folder.path / "reply-1.md").read_text() == "answer to: write it"


def test_the_question_is_stored_before_it_is_asked(folder: AttemptFolder) -> None:
    def ask(asked: Question) -> Reply:
        assert (folder.path / "question-1.json").exists()
        assert asked.id in (folder.path / "question-1.md").read_text()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        folder.reply_to(1, question(3), ask)
    assert folder.replies() == ()
    assert folder.reply_to(1, question(3), Asked()).text == "answer to: write it"


def test_what_was_spent_without_a_reply_counts_with_the_one_that_comes(folder: AttemptFolder) -> None:
    def fails(asked: Question) -> Reply:
        error = NoReply("nobody answers")
        error.cut = Cut(Usage(1000, 50), 0.25)
        raise error

    for _ in range(2):
        with pytest.raises(NoReply):
            AttemptFolder(folder.path, 3).reply_to(1, question(3), fails)
    came = folder.reply_to(1, question(3), Asked())
    plain = reply("answer to: write it")
    assert came.cut == Cut(Usage(2000, 100), 0.5)
    assert (came.usage, came.dollars) == (plain.usage + Usage(2000, 100), pytest.approx(0.51))
    assert folder.replies() == (came,)
    assert folder.reply_to(2, question(3, 2, "mend it"), Asked()).cut == Cut()


def _set_aside(folder: AttemptFolder) -> set[str]:
    """Replies that were paid for and answer no question of the attempt any more."""
    found = (path for path in folder.path.iterdir() if re.fullmatch(r"reply-\d+\.[0-9a-f]{12}\.json", path.name))
    return {json.loads(path.read_text("utf-8"))["text"] for path in found}


def test_another_question_sets_the_old_pair_aside_and_finds_it_again(folder: AttemptFolder) -> None:
    ask = Asked()
    folder.reply_to(1, question(3), ask)
    folder.reply_to(2, question(3, 2, "mend it"), ask)
    hinted = folder.reply_to(1, question(3, text="write it; one warp per row"), ask)
    assert hinted.text == "answer to: write it; one warp per row"
    assert [one.text for one in folder.replies()] == [hinted.text]  # what followed from the old question went too
    assert _set_aside(folder) == {"answer to: write it", "answer to: mend it"}
    assert folder.reply_to(1, question(3), ask).text == "answer to: write it"
    assert folder.reply_to(2, question(3, 2, "mend it"), ask).text == "answer to: mend it"
    assert len(ask.questions) == 3  # what was paid for is taken up again
    assert _set_aside(folder) == {hinted.text}


def test_text_that_utf8_cannot_say_survives_in_a_reply(folder: AttemptFolder) -> None:
    stored = folder.reply_to(1, question(3), lambda _: reply("a \ud800 b"))
    assert stored.text == "a \ud800 b"
    assert (folder.path / "reply-1.md").read_text() == "a ? b"


def test_a_partial_reply_goes_when_the_whole_is_there(folder: AttemptFolder) -> None:
    partial = folder.path / "reply-1.partial.md"

    def ask(asked: Question) -> Reply:
        folder.stream(1, "half a ")
        folder.stream(1, "reply")
        assert partial.read_text() == "half a reply"
        return reply()

    folder.reply_to(1, question(3), ask)
    assert not partial.exists()


def test_a_memo_is_made_once_whatever_its_type(folder: AttemptFolder) -> None:
    made: list[str] = []

    def make(what: object) -> object:
        made.append("made")
        return what

    for _ in range(2):
        assert folder.remember("verdict", Verdict, lambda: make(PASSED)) == PASSED
        assert folder.remember("measurement", Measurement | None, lambda: make(modelled(3.0))) == modelled(3.0)
        assert folder.remember("nothing", Measurement | None, lambda: make(None)) is None
        assert folder.remember("evidence", str, lambda: make("line 3 is slow")) == "line 3 is slow"
    assert len(made) == 4


def test_another_kernel_voids_what_is_known_of_the_first(folder: AttemptFolder) -> None:
    folder.save_text("kernel.cu", KERNEL_TEXT)
    assert folder.text("kernel.cu") == KERNEL_TEXT  # line ends and all
    folder.remember("evidence", str, lambda: "e")
    folder.remember("tune", TuneResult, lambda: TuneResult((), ()))
    folder.save_text("kernel.cu", KERNEL_TEXT)
    assert folder.remember("tune", TuneResult, lambda: TuneResult((), (), 5)).skipped == 0
    folder.save_text("kernel.cu", "// another")
    assert folder.remember("tune", TuneResult, lambda: TuneResult((), (), 5)).skipped == 5
    assert folder.remember("evidence", str, lambda: "new") == "e"


def test_finish_and_load(folder: AttemptFolder) -> None:
    assert folder.load() is None
    folder.finish(attempt(3, 12.5))
    assert folder.load() == attempt(3, 12.5)
    with pytest.raises(ValueError, match="does not belong"):
        folder.finish(attempt(4))


def test_what_cannot_be_read_is_named(folder: AttemptFolder) -> None:
    with pytest.raises(Damaged, match=r"kernel\.cu is missing"):
        folder.text("kernel.cu")
    folder.finish(attempt(3))
    (folder.path / "attempt.json").write_text('{"number": "three"}')
    with pytest.raises(Damaged, match=r"attempt\.json cannot be read"):
        folder.load()
