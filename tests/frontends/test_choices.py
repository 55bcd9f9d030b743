"""Who writes, and where kernels run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.frontends.arguments import BadArgument
from tilewright.frontends.author_choice import author_name, checked_url, open_author
from tilewright.frontends.place_choice import (
    choose_place,
    emulated_place,
    known_profile,
    named_gpu,
    open_devices,
    same_place,
)
from tilewright.models import MissingKey
from tilewright.records import PROFILES


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
    monkeypatch.setattr("tilewright.frontends.place_choice.profiles", lambda: ())
    place = choose_place(None)
    assert place == emulated_place("H200")
    assert "modelled, not measured" in place.words
    assert choose_place("sm_80").gpu == "A100"
    with open_devices(place) as (emulator, gpu):
        assert emulator.profile == PROFILES["H200"]
        assert gpu is None


def test_a_local_gpu_is_used_where_it_is_the_one_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    local = replace(PROFILES["H100"], name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("tilewright.frontends.place_choice.profiles", lambda: (local,))
    for wanted in (None, "H100", "sm_90a"):
        place = choose_place(wanted)
        assert (place.gpu, place.index, place.is_emulated) == ("H100", 0, False)
    elsewhere = choose_place("A100")
    assert elsewhere.is_emulated
    assert "this machine has NVIDIA H100" in elsewhere.words


def test_a_run_goes_on_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontends.place_choice.profiles", lambda: ())
    with pytest.raises(BadArgument, match="was measured on NVIDIA H200"):
        same_place("NVIDIA H200 (cuda:0)", "H200", "")
    monkeypatch.setattr("tilewright.frontends.place_choice.profiles", lambda: (PROFILES["H200"],))
    assert same_place("H200 (emulated)", "H200", "").is_emulated
    assert same_place("NVIDIA H200 (cuda:0)", "H200", "").index == 0
