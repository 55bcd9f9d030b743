"""Who writes, and where kernels run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK

from tilewright.frontends.api.choices import (
    author_name,
    check_key,
    checked_against,
    checked_baselines,
    checked_url,
    choose_device,
    emulated_device,
    known_profile,
    open_author,
    open_devices,
    same_device,
)
from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.models import MissingKey, providers
from tilewright.records import PROFILES, Environment
from tilewright.store import NoSuchRun, Store
from tilewright.tasks.errors import BadArgument


def test_the_author_is_the_one_named_else_by_key_else_the_playbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"OPENAI_API_KEY": "sk-2", "ANTHROPIC_API_KEY": "sk-1"}
    assert author_name("openai:gpt-x", None, keys) == "openai:gpt-x"
    assert author_name(None, "playbook", keys) == "playbook"
    assert author_name(None, None, keys).startswith("anthropic:")
    assert author_name(None, None, {"HF_TOKEN": "hf"}).startswith("hf:")
    assert author_name(None, None, {"ANTHROPIC_API_KEY": ""}) == "playbook"
    monkeypatch.chdir(tmp_path)
    assert author_name("relay:box", None, {}) == f"relay:{tmp_path / 'box'}"  # a run is resumed from anywhere
    for model, author in ((None, "claude"), ("openai:x", "playbook")):
        with pytest.raises(BadArgument):
            author_name(model, author, {})


def test_a_recording_is_named_as_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    folder = Store().create_run(TASK, SETTINGS, ENVIRONMENT)
    for name in ("double", "last", folder.path):
        assert author_name(f"replay:{name}", None, {}) == f"replay:{folder.path.resolve()}"
    with pytest.raises(NoSuchRun, match="no run is called '/nosuch'"):
        author_name("replay:/nosuch", None, {})


def test_help_and_docs_name_a_model_that_is_used_unasked() -> None:
    docs = Path(__file__).parents[3] / "docs"
    for text in ((docs / "commands.md").read_text(), (docs / "models.md").read_text()):
        assert set(re.findall(r"anthropic:[\w-]+", text)) == {f"anthropic:{providers()['anthropic'].default_model}"}


def test_a_missing_key_is_known_without_opening_the_model() -> None:
    with pytest.raises(MissingKey, match="openai:x needs a key; set OPENAI_API_KEY"):
        check_key("openai:x", "", {"ANTHROPIC_API_KEY": "sk", "OPENAI_API_KEY": " "})
    for name, address, environ in (
        ("openai:x", "", {"OPENAI_API_KEY": "sk"}),
        ("openai:x", "", {"OPENAI_BASE_URL": "http://localhost"}),
        ("openai:x", "http://localhost", {}),
        ("playbook", "", {}),
        ("relay:box", "", {}),
    ):
        check_key(name, address, environ)


def test_what_to_compare_with_is_looked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_ops.py").write_text("raise RuntimeError('it is not imported')\n")
    assert checked_against("my_ops:rope") == "my_ops:rope"
    assert checked_against("torch.nn.functional:gelu") == "torch.nn.functional:gelu"
    assert checked_against("only.there:rope", elsewhere=True) == "only.there:rope"
    for text, message in (("my_ops", "write MODULE:FUNCTION"), ("no_ops:f", "no module no_ops is found")):
        with pytest.raises(BadArgument, match=message):
            checked_against(text)


def test_baselines_are_known_by_name() -> None:
    assert checked_baselines(["eager", " max-autotune", "eager"]) == ("eager", "max-autotune")
    with pytest.raises(BadArgument, match="--baselines cublas: write some of eager, compile, max-autotune, library"):
        checked_baselines(["eager", "cublas"])
    with pytest.raises(BadArgument, match="nothing"):
        checked_baselines([""])


def test_a_price_is_said_or_said_to_be_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-key")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with open_author("playbook", "", print) as chosen:
        assert chosen.price_words == "built in, costs nothing"
    with open_author("anthropic:claude-sonnet-5", "", print) as chosen:
        assert chosen.price_words == "$2 in and $10 out per million tokens"
    with pytest.raises(MissingKey), open_author("openai:gpt-x", "", print):
        pass
    with pytest.raises(BadArgument, match="--base-url"), open_author("playbook", "http://localhost", print):
        pass


def test_an_address_with_a_password_is_refused_because_it_is_stored() -> None:
    assert checked_url("http://host:8000/v1") == "http://host:8000/v1"
    assert checked_url(None) == ""
    for url in ("notaurl", "localhost:8000/v1", "ftp://host/v1", "http://"):
        with pytest.raises(BadArgument, match="write http://HOST:PORT/v1"):
            checked_url(url)
    with pytest.raises(BadArgument, match="name the model with --model"):
        checked_url("http://host:8000/v1", "playbook")
    with pytest.raises(BadArgument, match="never stored") as caught:
        checked_url("http://me:secret@host:8000/v1")
    assert "secret" not in str(caught.value)


def test_gpus_are_known_by_name_and_architecture() -> None:
    for text in ("h200", "H200", "sm_90a", "sm_90"):
        assert named_gpu(text).name == "H200"
    assert named_gpu("rtx4090").name == "RTX 4090"
    with pytest.raises(BadArgument, match="write one of T4"):
        named_gpu("H2OO")
    driver = replace(PROFILES["H100"], name="NVIDIA H100 80GB HBM3")
    assert known_profile(driver).name == "H100"
    assert known_profile(replace(driver, name="NVIDIA Something")).name == "H200"


def test_without_such_a_gpu_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontends.api.choices.profiles", lambda: ())
    device = choose_device(None)
    assert device == emulated_device("H200")
    assert "modelled, not measured" in device.words
    assert choose_device("sm_80").gpu == "A100"
    with open_devices(device) as (emulator, gpu):
        assert emulator.profile == PROFILES["H200"]
        assert gpu is None


def test_a_local_gpu_is_used_where_it_is_the_one_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    local = replace(PROFILES["H100"], name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("tilewright.frontends.api.choices.profiles", lambda: (local,))
    for wanted in (None, "H100", "sm_90a"):
        device = choose_device(wanted)
        assert (device.gpu, device.index, device.is_emulated) == ("H100", 0, False)
    elsewhere = choose_device("A100")
    assert elsewhere.is_emulated
    assert "this machine has NVIDIA H100" in elsewhere.words


def test_a_run_goes_on_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Environment("0.1.0", "3.11", "2.13.0", "NVRTC 13.0", "NVIDIA H200 (cuda:0)", "Linux", emulated=False)
    emulated = replace(measured, device="H200, by the emulator", emulated=True)
    monkeypatch.setattr("tilewright.frontends.api.choices.profiles", lambda: ())
    with pytest.raises(BadArgument, match="was measured on NVIDIA H200"):
        same_device(measured, "H200", "")
    monkeypatch.setattr("tilewright.frontends.api.choices.profiles", lambda: (PROFILES["H200"],))
    assert same_device(emulated, "H200", "").is_emulated
    assert same_device(measured, "H200", "").index == 0
