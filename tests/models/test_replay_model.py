from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.models import BadModelName, ModelError, NoRecordedReply, open_model
from tilewright.models.replay_model import ReplayModel
from tilewright.records import Message, Question, Reply, Role, StopReason, Usage, to_json

QUESTION = Question("0003-2", "system", (Message(Role.USER, "faster"),))
REPLY = Reply("anthropic:claude-x", "a kernel", StopReason.LENGTH, Usage(1, 2, 3, 4), 0.25, 7.5, 1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "0003"
    folder.mkdir(parents=True)
    (folder / "reply-2.json").write_text(json.dumps(to_json(REPLY)))
    (folder / "question-2.json").write_text(json.dumps(to_json(QUESTION)))
    return tmp_path


def test_a_recorded_reply_comes_back_as_it_was(run: Path) -> None:
    texts: list[str] = []
    model = open_model(f"replay:{run}")
    assert model.complete(QUESTION, texts.append) == REPLY
    assert texts == ["a kernel"]
    assert model.name == f"replay:{run}"
    model.close()


@pytest.mark.parametrize("missing", ["0003-1", "0004-1", "0000-1"])
def test_the_recording_ends(run: Path, missing: str) -> None:
    with pytest.raises(NoRecordedReply, match=f"no reply {missing}: the recording ends here"):
        ReplayModel(run).complete(replace(QUESTION, id=missing), lambda text: None)


def test_only_a_strict_replay_compares_the_question(run: Path) -> None:
    changed = replace(QUESTION, system="another")
    assert ReplayModel(run).complete(changed, lambda text: None) == REPLY
    assert ReplayModel(run, strict=True).complete(QUESTION, lambda text: None) == REPLY
    with pytest.raises(ModelError, match="0003-2 is not the one that was recorded"):
        ReplayModel(run, strict=True).complete(changed, lambda text: None)
    (run / "attempts" / "0003" / "question-2.json").unlink()
    with pytest.raises(ModelError, match="is not the one"):
        ReplayModel(run, strict=True).complete(QUESTION, lambda text: None)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"is": "Reply"}', "\xff"])
def test_a_broken_recording_is_named(run: Path, content: str) -> None:
    (run / "attempts" / "0003" / "reply-2.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=r"reply-2\.json cannot be read"):
        ReplayModel(run).complete(QUESTION, lambda text: None)


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadModelName, match="is no run"):
        open_model(f"replay:{tmp_path}")


def test_a_reply_may_take_its_time(run: Path) -> None:
    started = time.monotonic()
    ReplayModel(run, delay_s=0.2).complete(QUESTION, lambda text: None)
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("name", ["../3-1", "0003", "0003-0", "x-1"])
def test_an_id_of_another_form(run: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is like 0003-1"):
        ReplayModel(run).complete(replace(QUESTION, id=name), lambda text: None)


def test_a_huge_reply_is_refused_without_being_read(run: Path) -> None:
    with (run / "attempts" / "0003" / "reply-2.json").open("r+b") as file:
        file.truncate(400 << 20)
    with pytest.raises(ModelError, match=r"reply-2\.json has 400 MiB or more, and a reply may have 4 MiB"):
        ReplayModel(run).complete(QUESTION, lambda text: None)
