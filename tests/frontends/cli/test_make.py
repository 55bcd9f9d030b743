"""`make` and `resume` as a person meets them: the emulator, recorded or relayed replies, real processes for signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.frontends.in_process import Done, tilewright
from tests.frontends.recordings import RIGHT, SOURCE, SPECIFICATION, WRONG, record
from tests.models.servers import AnthropicServer, OpenAIServer, ScriptedServer, Status
from tests.tasks.in_process import ask_here

import tilewright as tw
from tilewright.models import key_variables
from tilewright.records import Provenance, from_json
from tilewright.runtime import NoKernelApplies
from tilewright.store import RunFolder, Store, provenance_path

LAYERNORM = "LayerNorm over the last dimension, then exact GELU"
WORDS = "SiLU of every element, scaled"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def function(tmp_path: Path) -> str:
    path = tmp_path / "ops.py"
    path.write_text(SOURCE)
    return f"{path}:scaled_silu"


def environment(home: Path) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k not in key_variables()}, "TILEWRIGHT_HOME": str(home)}


def started(home: Path, *arguments: object) -> subprocess.Popen[str]:
    """The command in a process and a session of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        start_new_session=True,
    )


@contextmanager
def ending(*children: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, none of these processes stays."""
    try:
        yield
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_until(condition: Callable[[], bool], *children: subprocess.Popen[str]) -> None:
    """Until it holds, while these processes live."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        for child in children:
            assert child.poll() is None, child.communicate()
        time.sleep(0.05)


# -- words, from the first to a kernel --


@dataclass(frozen=True)
class Story:
    """A run from words to a kernel: it waits to be accepted, is interrupted, is carried to its end."""

    home: Path
    run: str
    output: Path  # where its kernel was wanted from the beginning
    kernel: str
    replay: str  # the author
    waiting: Done
    interrupted: str  # what was said on stderr when it was
    done: Done


ASKED = ("make", WORDS, "--shape", "x=256:f32", "--gpu", "H200")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    home, output, box = folder / "home", folder / "mine.cu", folder / "box"
    recording = record(folder / "recording", ("0000-1", SPECIFICATION), ("0001-1", WRONG), ("0002-1", RIGHT))
    options = ("--model", f"replay:{recording}", "--attempts", 2, "-o", os.path.relpath(output), "--license", "MIT")
    waiting = tilewright(home, *ASKED, *options)
    [name] = [one.id for one in Store(home).runs().waiting]
    # Accepted, it goes on with an author who does not answer, until it is interrupted.
    child = started(home, "resume", name, "--yes", "--model", f"relay:{box}")
    with ending(child):
        wait_until((box / "0001-1.prompt.md").exists, child)
        busy = tilewright(home, "resume", name)
        assert busy.returncode == 3
        assert f"being worked on by process {child.pid}" in busy.stderr
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
        stderr = child.communicate(timeout=300)[1]
        assert child.returncode == 130, stderr
    # Resumed with the first author, and from another folder.
    done = tilewright(home, "resume", name, "--model", f"replay:{recording}", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return Story(home, name, output, output.read_text(), f"replay:{recording}", waiting, stderr, done)


@pytest.fixture
def told(story: Story, tmp_path: Path) -> Story:
    """The story, in a home and with an output of this test's own."""
    shutil.copytree(story.home, tmp_path / "home")
    folder = RunFolder(tmp_path / "home" / "runs" / story.run)
    output = tmp_path / "mine.cu"
    header = folder.header()
    folder.reopen(replace(header.settings, output=str(output)))
    assert header.ending is not None
    folder.end(header.ending)
    return replace(story, home=tmp_path / "home", output=output)


def test_words_wait_until_their_specification_is_accepted(story: Story) -> None:
    assert story.waiting.returncode == 2, story.waiting.stderr
    for text in ("author  replay:", "at most 2 attempts", "modelled, not measured", "silu(x) * scale", "one number"):
        assert text in story.waiting.stderr, text
    assert f"tilewright resume {story.run} --yes" in story.waiting.stderr.splitlines()[-1]
    assert story.waiting.stdout == ""


def test_an_interrupted_run_is_carried_to_its_end(story: Story) -> None:
    last = story.interrupted.splitlines()[-1]
    assert last == f"tilewright: interrupted; resume with: tilewright resume {story.run}"
    report = json.loads(story.done.stdout)
    assert [one["verdict"]["is"] for one in report["run"]["attempts"]] == ["Rejected", "Passed"]
    assert (report["best"], report["kernel"]) == (2, str(story.output))  # where it was wanted in the beginning
    assert "* scale;" in story.kernel
    (tuned,) = json.loads(Path(f"{story.output}.tuned.json").read_text())["entries"]
    assert (tuned["gpu"], tuned["cc"], tuned["sms"], tuned["emulated"]) == ("H200", 90, 132, True)
    said = story.waiting.stderr + story.done.stderr
    assert [line.split()[:3] for line in said.splitlines() if line[:3].strip().isdecimal()] == [
        ["1", "draft", "wrong"],
        ["2", "repair-wrong", "passed"],
    ]
    for line in ("specification: asking", "attempt 1, draft: asking", "attempt 2, repair-wrong: asking"):
        assert said.count(f"{line} replay:") == 1, line  # nothing is asked for twice


def test_an_ended_run_writes_its_kernel_where_it_is_missing(told: Story, tmp_path: Path) -> None:
    home, name, output = told.home, told.run, told.output
    assert tilewright(home, "resume", name).returncode == 0
    assert output.read_text() == told.kernel
    output.write_text("// mine now")  # what was edited since is left alone
    assert f"kernel: {home}" in tilewright(home, "resume", name).stdout
    assert output.read_text() == "// mine now"
    other = tmp_path / "other.cu"
    assert tilewright(home, "resume", name, "-o", other).returncode == 0
    assert other.read_text() == told.kernel
    provenance = from_json(Provenance, json.loads(provenance_path(other).read_text()))
    assert (provenance.licence, provenance.run) == ("MIT", name)
    assert {one.author for one in provenance.contributions} == {"recorded"}  # who wrote it, not who handed it over
    ended = tilewright(home, "resume", name, "--hint", "use vectors")
    assert ended.returncode == 2
    assert "because the budget of attempts is spent; add more with --attempts N" in ended.stderr


def test_what_was_made_can_be_shown(story: Story) -> None:
    assert "seed" in tilewright(story.home, "show", story.run, "--attempt", 1).stdout  # the case that failed
    assert WORDS in tilewright(story.home, "show", story.run, "--prompt", 0).stdout


def test_the_same_words_are_found_again_free_and_without_an_author(told: Story, tmp_path: Path) -> None:
    again = tilewright(told.home, *ASKED)
    assert again.returncode == 0, again.stderr
    assert f"already made by run {told.run}" in again.stdout
    # What was asked for beyond the kernel itself is done or said: another author, another licence.
    box, copy = tmp_path / "nobody", tmp_path / "copy.cu"
    other = tilewright(told.home, *ASKED, "--model", f"relay:{box}", "--license", "Apache-2.0", "-o", copy)
    assert f"so relay:{box} was not asked for one; --fresh has it made anew by relay:{box}" in other.stdout
    assert from_json(Provenance, json.loads(provenance_path(copy).read_text())).licence == "Apache-2.0"
    assert copy.read_text() == told.kernel
    assert "-o FILE.cu" in tilewright(told.home, *ASKED, "--license", "Apache-2.0").stdout


def test_other_words_for_a_known_task_find_its_kernel(
    told: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The author has a specification on record and no kernel, so asking it for one would fail."""
    ask_here(monkeypatch)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(told.home))
    model = f"replay:{record(tmp_path / 'specified', ('0000-1', SPECIFICATION))}"
    words = "each element times its sigmoid, then scaled"
    made = tw.make(words, x="256:f32", gpu="H200", model=model, yes=True, quiet=True)
    assert (made.entry.run, made.run) == (told.run, None)
    assert made.kernel.read_text() == told.kernel
    with pytest.raises(NoKernelApplies):  # a reference that a model wrote never runs in this process
        made(torch.zeros(8, dtype=torch.float64))


def test_a_file_to_improve_makes_a_run_of_its_own(told: Story, tmp_path: Path) -> None:
    start = tmp_path / "start.cu"
    start.write_text(told.kernel)
    improved = tilewright(told.home, *ASKED, "--model", told.replay, "--start", start)
    assert improved.returncode == 2, improved.stderr  # its words wait to be accepted
    [waits] = [one.id for one in Store(told.home).runs().waiting]
    assert Store(told.home).open_run(waits).header().settings.start == told.kernel


# -- several who ask for the same at the same time --


# -- models, the playbook, and what is refused --


@pytest.mark.parametrize(("provider", "serve"), [("anthropic", AnthropicServer), ("openai", OpenAIServer)])
def test_a_served_model_is_asked_once_and_its_key_is_nowhere(
    home: Path, provider: str, serve: type[ScriptedServer]
) -> None:
    key = "sk-a-very-secret-key"
    variables = {f"{provider.upper()}_API_KEY": key}
    with serve(lambda body: SPECIFICATION, troubles=[Status(429, {"retry-after": "0"})]) as server:
        model = ("--model", f"{provider}:some-model", "--base-url", server.base_url)
        waiting = tilewright(home, "make", WORDS, "--shape", "x=2048:f32", *model, "--json", **variables)
        assert waiting.returncode == 2, waiting.stderr
        assert "silu(x) * scale" in json.loads(waiting.stdout)["specification"]["reference"]
        assert "price unknown" in waiting.stderr
        again = tilewright(home, "resume", "last", "--json", **variables)
        assert again.returncode == 2
        assert json.loads(again.stdout) == json.loads(waiting.stdout)
        assert len(server.requests) == 2  # the one that was put off, and the one that was answered
    stored = "".join(path.read_text() for path in home.rglob("*") if path.is_file())
    assert WORDS in stored
    assert key not in stored + waiting.stderr + waiting.stdout


def test_the_playbook_makes_a_kernel_from_words(home: Path) -> None:
    done = tilewright(
        home,
        "make",
        LAYERNORM,
        "--shape",
        "x=8x64:f32",
        "--author",
        "playbook",
        "--attempts",
        1,
        "--yes",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["best"] is not None
    assert "//! op      layernorm_gelu(" in Path(report["kernel"]).read_text()
    assert report["run"]["environment"]["device"] == "H200 (emulated)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FUNCTION", "--gpu", "H200", "--arch", "sm_80"], "--gpu and --arch name two targets"),
        (["FUNCTION", "--shape", "x"], "write --shape NAME=VALUE"),
        (["FUNCTION", "--shape", "x=64:f32", "--model", "nobody:x"], "write PROVIDER:NAME with one of anthropic"),
        (["FUNCTION", "--shape", "z=64:f32"], "has no such parameter"),
        (["FUNCTION", "-o", "."], "a folder"),
        (["FUNCTION", "--license", "my own!"], "write an SPDX expression"),
        (["FUNCTION", "--shape", "x=64:f32", "--spool", "no/such"], "there is no such folder"),
        (["FUNCTION", "-o", "/proc/k.cu"], "nothing can be written in /proc"),
        (["FUNCTION", "-o", "no/such/k.cu"], "make it, or give another file with -o"),
        (["FUNCTION", "--start", "EMPTY"], "no launch plan"),
        (["make my coffee"], 'it is not understood what "coffee" means'),
        (
            ["rmsnorm", "--shape", "x=16x64", "--shape", "weight=64", "--shape", "y=4"],
            "--shape y: the task has no such tensor; it has x, weight",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(home: Path, function: str, arguments: list[str], message: str) -> None:
    empty = Path(function).parent / "empty.cu"
    empty.write_text("// nothing\n")
    given = {"FUNCTION": function, "EMPTY": empty}
    done = tilewright(home, "make", *(given.get(one, one) for one in arguments))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert Store(home).runs().runs == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rmsnorm", "--set", "epsilon=1e-3"], "--set epsilon: the task has no such number; it has eps"),
    ],
)
def test_a_refused_request_leaves_no_run(home: Path, arguments: list[str], message: str) -> None:
    done = tilewright(home, "make", *arguments, "--yes")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.splitlines()[-1] == "nothing was done, so no run is kept"
    assert Store(home).runs().waiting == ()
