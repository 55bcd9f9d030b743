"""`tilewright make` with every kind of model, as a person meets it: real protocols, local servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.frontends.in_process import Done, tilewright
from tests.models.servers import Answer, AnthropicServer, Cut, OpenAIServer, Status
from tests.refine.scripted_replies import (
    FAST_KERNEL,
    FASTER,
    KEY,
    MALFORMED,
    PRICES,
    REFUSAL,
    RIGHT,
    SERVICES,
    SOURCE,
    TROUBLES,
    WRONG,
    Correspondent,
    Script,
    Service,
    make_random_model,
)

from tilewright.models import key_variables


class Person:
    """Somebody at a command line, with a home for runs, a price table and one key."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.heard = ""  # all that any command printed
        self._prices, self._source = folder / "prices.toml", folder / "ops.py"
        self._prices.write_text(PRICES)
        self._source.write_text(SOURCE)

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        own = {"TILEWRIGHT_HOME": str(self.home), "TILEWRIGHT_PRICES": str(self._prices)}
        inherited = {name: value for name, value in os.environ.items() if name not in key_variables()}
        return {**inherited, **own, **variables}

    def says(self, *arguments: object, **variables: str) -> Done:
        done = tilewright(self.home, *arguments, TILEWRIGHT_PRICES=str(self._prices), **variables)
        self.heard += done.stdout + done.stderr
        return done

    def request(self, model: str, *more: object) -> tuple[object, ...]:
        return ("make", f"{self._source}:squash", "--shape", "x=8x100:f32", "--gpu", "H200", "--model", model, *more)

    def asks(self, *arguments: object) -> Any:
        """What a command that only reads says with `--json`."""
        done = self.says(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def reads_back(self) -> dict[str, Any]:
        """The latest run as `show` has it; `runs` has it too, and both are there for people."""
        shown = dict(self.asks("show", "last"))
        name = shown["run"]["id"]
        assert self.asks("runs")["runs"][0]["id"] == name
        table = self.says("show", name).stdout
        for attempt in shown["run"]["attempts"]:
            assert attempt["summary"][:20] in table
        return shown

    def stored(self) -> str:
        return "\n".join(path.read_text() for path in self.home.rglob("*") if path.is_file())


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def verdicts(shown: dict[str, Any]) -> list[str]:
    return [one["verdict"]["is"] for one in shown["run"]["attempts"]]


def spent(shown: dict[str, Any]) -> list[tuple[object, ...]]:
    return [(one["kernel"], one["usage"], one["dollars"], one["replies"]) for one in shown["run"]["attempts"]]


@pytest.mark.slow
def test_a_rejected_key_stops_a_run_and_a_good_one_ends_it(person: Person) -> None:
    replies = [Answer(text, "", 1000, 200, 3000) for text in (MALFORMED, WRONG, RIGHT)]
    troubles = [Status(429, {"retry-after": "1"}), None, Cut(20), None, Status(401, body={"error": KEY})]
    with AnthropicServer(Script(*replies), troubles, piece=16) as server:
        model = ("--base-url", server.base_url, "--attempts", 2)
        stopped = person.says(*person.request("anthropic:clever-1", *model), ANTHROPIC_API_KEY=KEY)
        assert stopped.returncode == 3, stopped.stderr
        assert stopped.stdout == ""
        lines = stopped.stderr.splitlines()
        assert lines[0] == "author  anthropic:clever-1: $2 in and $10 out per million tokens"
        assert lines[1] == "budget  at most 2 attempts, 20 min, 200,000 tokens, $2.00"
        run = lines[3].removeprefix("run     ")
        assert "the service answered 429" in stopped.stderr
        assert lines[-2] == (
            "tilewright: anthropic:clever-1: the service did not accept the key; check ANTHROPIC_API_KEY (401): "
            "[key removed]"
        )
        assert lines[-1] == f"what was done is kept; resume with: tilewright resume {run}"
        assert "may go on" in person.says("runs").stdout
        half = person.asks("show", run)
        assert (half["run"]["ending"], verdicts(half)) == (None, ["Rejected"])
        assert len(server.requests) == 5

        ended = person.says("resume", run, ANTHROPIC_API_KEY="another-good-key")
        assert ended.returncode == 0, ended.stderr
        assert len(server.requests) == 6  # nothing that was answered is asked again
        assert server.requests[-1].headers["authorization"] == "Bearer another-good-key"
    shown = person.reads_back()
    assert shown["kernel"].replace("//! lead    x: 2\n", "") in RIGHT  # the line that the task adds
    assert (shown["best"], verdicts(shown)) == (2, ["Rejected", "Passed"])
    attempts = shown["run"]["attempts"]
    # The stream that was cut after 17 pieces of 16 characters is paid for too: 1000 and 3000 in, 68 out.
    assert [one["usage"]["input_tokens"] for one in attempts] == [3000, 1000]
    assert [one["usage"]["output_tokens"] for one in attempts] == [468, 200]
    assert [one["usage"]["cache_read_tokens"] for one in attempts] == [9000, 3000]
    assert [one["dollars"] for one in attempts] == pytest.approx([0.0092 + 0.00328, 0.0046])
    assert "2 of 2 attempts, 16,668 tokens (about 4,068 in replies that were cut off), $0.02 of $2.00" in ended.stdout

    assert KEY not in person.stored() + person.heard
    assert "another-good-key" not in person.stored() + person.heard
    assert not list(person.home.rglob("*.partial.md"))


@pytest.mark.slow
def test_ctrl_c_within_a_slow_reply(person: Person) -> None:
    with OpenAIServer(Script(RIGHT), piece=4, pause_s=0.05) as server:
        request = person.request("openai:clever-2", "--base-url", server.base_url, "--attempts", 1)
        child = subprocess.Popen(
            [sys.executable, "-m", "tilewright", *map(str, request)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=person.environment({"OPENAI_API_KEY": KEY}),
            start_new_session=True,
        )
        try:
            partial = wait_for_part(person.home, child)
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
            stdout, stderr = child.communicate(timeout=300)
        finally:
            child.kill()
            child.wait()
        assert (child.returncode, stdout) == (130, ""), stderr
        run = partial.parents[2].name
        assert stderr.splitlines()[-1] == f"tilewright: interrupted; resume with: tilewright resume {run}"
        assert "Traceback" not in stderr
        assert RIGHT.startswith(partial.read_text())  # what had come in is there to be read
        assert person.asks("show", run)["run"]["attempts"] == []
        server.pause_s = 0.0
        done = person.says("resume", run, OPENAI_API_KEY=KEY)
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 2
    assert not partial.exists()
    assert verdicts(person.reads_back()) == ["Passed"]
    assert KEY not in person.stored() + person.heard + stderr


def wait_for_part(home: Path, child: subprocess.Popen[str]) -> Path:
    """The file with the part of a reply that has come in, once there is a good part of it."""
    deadline = time.monotonic() + 600
    while True:
        for path in home.rglob("reply-1.partial.md"):
            if path.stat().st_size > 60:
                return path
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_model_that_only_refuses_leaves_no_kernel_and_says_why(person: Person) -> None:
    with OpenAIServer(lambda body: Answer("", "content_filter", refusal=REFUSAL)) as server:
        request = person.request("hf:some-org/clever-3:some-host", "--base-url", server.base_url)
        done = person.says(*request, HF_TOKEN=KEY)
        assert done.returncode == 1, done.stderr
        assert len(server.requests) == 3  # a refusal is not asked again
        assert server.requests[0].body["model"] == "some-org/clever-3:some-host"
    assert done.stdout.count(f"the model refused: {REFUSAL}") == 3
    assert "no attempt passed, so there is no kernel" in done.stdout
    assert "several replies in a row could not be used" in done.stdout
    shown = person.reads_back()
    assert [one["verdict"]["evidence"]["message"] for one in shown["run"]["attempts"]] == [
        f"the model refused: {REFUSAL}"
    ] * 3
    assert [one["dollars"] for one in shown["run"]["attempts"]] == [None] * 3
    assert KEY not in person.stored() + person.heard


# -- the whole way through every adapter; minutes, mostly of waiting before asking again --


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name.partition(":")[0])
def test_every_trouble_of_a_service_at_the_command_line(service: Service, person: Person) -> None:
    with service.serve(service.answers(), TROUBLES, piece=16) as server:
        request = person.request(service.name, "--base-url", server.base_url, "--attempts", 5)
        stopped = person.says(*request, **{service.key_variable: KEY})
        assert stopped.returncode == 3, stopped.stderr
        assert person.says("resume", "last", **{service.key_variable: "another-good-key"}).returncode == 0
        assert len(server.requests) == len(TROUBLES) + 1
    shown = person.reads_back()
    assert verdicts(shown) == ["Rejected", "Passed", "Rejected", "Passed", "Rejected"]
    assert (shown["best"], shown["kernel"]) == (4, FAST_KERNEL)

    # Replayed, the run comes to the same kernel and asks nobody.
    again = person.says(*person.request(f"replay:{shown['folder']}", "--fresh", "--attempts", 5, "--json"))
    assert again.returncode == 0, again.stderr
    replayed = json.loads(again.stdout)
    assert replayed["run"]["id"] != shown["run"]["id"]
    assert Path(replayed["kernel"]).read_text() == FAST_KERNEL
    assert spent(replayed) == spent(shown)
    assert KEY not in person.stored() + person.heard


@pytest.mark.slow
def test_a_relay_at_the_command_line(person: Person, tmp_path: Path) -> None:
    replies = {"0001-1": MALFORMED, "0001-2": WRONG, "0002-1": RIGHT, "0003-1": FASTER}
    with Correspondent(tmp_path / "box", replies) as somebody:
        done = person.says(*person.request(f"relay:{tmp_path / 'box'}", "--attempts", 3))
    assert done.returncode == 0, done.stderr
    assert somebody.answered == list(replies)
    assert person.reads_back()["kernel"] == FAST_KERNEL


@pytest.mark.slow
def test_a_random_model_at_the_command_line(person: Person, tmp_path: Path) -> None:
    done = person.says(*person.request(f"transformers:{make_random_model(tmp_path / 'model')}"))
    assert done.returncode == 1, done.stderr
    shown = person.reads_back()
    assert [one["replies"] for one in shown["run"]["attempts"]] == [2, 2, 2]
    assert "several replies in a row could not be used" in done.stdout
