"""An open model in this process, and the same one behind `transformers serve`. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.tiny_model import TEMPLATE_WITHOUT_SYSTEM, make_tiny_model

from tilewright.models import Model, ModelRejected, RetryPolicy, open_model
from tilewright.records import Message, Question, Role, StopReason

QUESTION = Question("0001-1", "Write kernels.", (Message(Role.USER, "one, please"),), max_output_tokens=24)
PROMPT = "<system> Write kernels. <user> one, please <assistant> "


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def opened(directory: Path) -> Model:
    return open_model(f"transformers:{directory}", say=lambda text: None)


def test_a_reply_streams_and_is_cut_at_its_limit(tiny: Path) -> None:
    texts: list[str] = []
    model = opened(tiny)
    reply = model.complete(QUESTION, texts.append)
    assert "".join(texts) == reply.text == "A" * 24
    assert reply.stop is StopReason.LENGTH
    assert reply.usage.output_tokens == 24
    assert reply.usage.input_tokens == len(PROMPT)  # a token is a byte here
    assert reply.dollars == 0.0
    again = model.complete(replace(QUESTION, max_output_tokens=5), lambda text: None)
    assert again.text == "AAAAA"
    model.close()


def test_a_reply_that_ends_by_itself(tmp_path: Path) -> None:
    reply = opened(make_tiny_model(tmp_path, ends=True)).complete(QUESTION, lambda text: None)
    assert reply.stop is StopReason.END
    assert (reply.text, reply.usage.output_tokens) == ("", 1)


def test_a_template_without_a_system_role(tmp_path: Path) -> None:
    model = opened(make_tiny_model(tmp_path, template=TEMPLATE_WITHOUT_SYSTEM))
    reply = model.complete(QUESTION, lambda text: None)
    assert reply.usage.input_tokens == len("<user> Write kernels.\n\none, please <assistant> ")


def test_the_context_limits_question_and_reply(tmp_path: Path) -> None:
    model = opened(make_tiny_model(tmp_path, context=len(PROMPT) + 10))
    reply = model.complete(QUESTION, lambda text: None)
    assert (reply.stop, reply.text) == (StopReason.LENGTH, "A" * 10)
    with pytest.raises(ModelRejected, match="the question alone has"):
        model.complete(replace(QUESTION, system="long " * 20), lambda text: None)


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="has no chat template"):
        opened(make_tiny_model(tmp_path, template=None)).complete(QUESTION, lambda text: None)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="cannot be loaded"):
        opened(tmp_path).complete(QUESTION, lambda text: None)


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "fastapi", "uvicorn")),
    reason="`transformers serve` needs accelerate, fastapi and uvicorn",
)
def test_transformers_serve(tiny: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", str(tiny)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            deadline = time.monotonic() + 600
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                assert server.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            model = open_model(
                f"openai:{tiny}",
                base_url=f"http://127.0.0.1:{port}/v1",
                environ={},
                say=lambda text: None,
                retries=RetryPolicy(attempts=2, first_wait_s=0.1),
            )
            texts: list[str] = []
            reply = model.complete(QUESTION, texts.append)
            assert reply.text == "".join(texts) == "A" * 24, (tmp_path / "log").read_text()
            assert reply.stop is StopReason.LENGTH
            assert reply.usage.output_tokens == 24
            assert reply.usage.input_tokens == len(PROMPT)
        finally:
            server.terminate()
            server.wait(timeout=300)
