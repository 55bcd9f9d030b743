"""Records to train on: one for each reply, judged by what became of it, in both forms of file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.frontends.in_process import tilewright
from tests.teaching.made_runs import EARLIER, SECRET, mended_run


def test_each_reply_has_the_verdict_of_its_kernel(tmp_path: Path) -> None:
    folder, out = mended_run(tmp_path), tmp_path / "data.jsonl"
    done = tilewright(tmp_path, "dataset", folder.path, EARLIER, "-o", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "alice" not in text
    assert SECRET not in text
    unread, refused, right, rendered = map(json.loads, text.splitlines())
    assert [one["verdict"] for one in (unread, refused, right)] == ["no usable reply", "plan refused: need", "right"]
    assert [one["passed"] for one in (unread, refused, right)] == [False, False, True]
    assert unread["kernel"] == ""
    assert unread["time_us"] is None
    assert (right["time_source"], right["best"], right["verified"]) == ("modelled", True, True)
    assert right["kernel"] == folder.attempt(2).text("kernel.cu")
    assert right["prompt"][0]["role"] == "system"
    assert right["completion"] == [{"role": "assistant", "content": "the mended file"}]
    assert (right["licence"], rendered["licence"]) == ("MIT", "NOASSERTION")
    assert "for 1 of them" in done.stdout
    assert rendered["prompt_source"] == "rendered"
    assert rendered["completion"][0]["content"].startswith("Summary: 16-byte vectors, one per thread\n\n```cuda\n")
    assert "relu_scale(x) -> y" in rendered["prompt"][0]["content"]


def test_only_those_that_passed_under_one_licence(tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    arguments = ("dataset", mended_run(tmp_path).path, EARLIER, "-o", out, "--passed", "--license", "Apache-2.0")
    done = tilewright(tmp_path, *arguments, "--json")
    assert json.loads(done.stdout)["licences"] == {"Apache-2.0": 2}
    assert all(json.loads(line)["passed"] for line in out.read_text().splitlines())


def test_what_lies_among_runs_and_is_none_is_passed_over(tmp_path: Path) -> None:
    runs = mended_run(tmp_path).path.parent
    (runs / "notes").mkdir()
    (runs / "damaged").mkdir()
    (runs / "damaged" / "run.json").write_text("{")
    done = tilewright(tmp_path, "dataset", runs, "-o", tmp_path / "data.jsonl", "--json")
    assert json.loads(done.stdout)["records"] == 3
    assert "passed over" in done.stderr
    assert "notes" not in done.stderr


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for output, said in (("data.csv", ".jsonl"), ("absent/data.jsonl", "no folder")):
        done = tilewright(tmp_path, "dataset", EARLIER, "-o", tmp_path / output)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
