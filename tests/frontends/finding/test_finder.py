"""Regions of a plain model: what an expert would list, with what it costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.frontends.finding.plain_models import Capped, GatedMlp, Model, RMSNorm, inputs
from tests.frontends.in_process import tilewright
from torch import nn

from tilewright.frontends.finding.costs import expected_us, modelled_us
from tilewright.frontends.finding.finder import Searched, search
from tilewright.frontends.finding.listing import found_lines, found_svg
from tilewright.frontends.finding.recording import Layout, Operation, record
from tilewright.frontends.finding.report import FoundRegion, RegionKind
from tilewright.records import PROFILES, from_json, to_json
from tilewright.tasks.errors import BadArgument

H200 = PROFILES["H200"]
ON_META = torch.device("meta")


@pytest.fixture(scope="module")
def searched() -> Searched:
    """At a real size, without memory."""
    with ON_META:
        model = Model(size=4096, heads=32, inner=11008)
        given = (torch.empty(1, 2048, 4096), torch.empty(2048, 128), torch.empty(2048, 128))
    return search(model.bfloat16().eval(), tuple(one.bfloat16() for one in given), {}, "H200")


def region(searched: Searched, name: str) -> FoundRegion:
    return next(one for one in searched.found.regions if one.name == name)


def test_it_lists_what_an_expert_would(searched: Searched) -> None:
    listed = {(one.name, one.kind, one.calls) for one in searched.found.regions}
    assert listed == {
        ("RMSNorm", RegionKind.MODULE, 3),  # the other two go with the addition before them
        ("residual_rmsnorm", RegionKind.CHAIN, 2),
        ("swiglu", RegionKind.CHAIN, 2),
        ("rotated", RegionKind.FUNCTION, 4),
    }
    assert region(searched, "residual_rmsnorm").inputs == {
        "x": "1x2048x4096:bf16",
        "attention": "1x2048x4096:bf16",
        "weight": "4096:bf16",
    }
    assert region(searched, "swiglu").title == "SwiGLU (in GatedMlp)"
    assert region(searched, "RMSNorm").places == ("blocks.0.before", "blocks.1.before", "last")


def test_the_playbook_is_asked(searched: Searched) -> None:
    for name in ("RMSNorm", "residual_rmsnorm", "swiglu"):
        assert region(searched, name).author == "playbook"
    assert all(bool(one.why) == (one.author == "model") for one in searched.found.regions)


def test_what_the_playbook_cannot_write_needs_a_model() -> None:
    found = search(Capped(), (torch.randn(4, 8),), {}, "H200").found
    assert [one.author for one in found.regions] == ["model"]
    text = "\n".join(found_lines(found))
    assert "needs a model: the playbook does not compute in uint16" in text
    assert "0 of 1 the playbook can write, free" in text


def test_times_are_of_bytes_and_products_and_gains_follow_amdahl(searched: Searched) -> None:
    found = searched.found
    assert not found.measured
    swiglu = region(searched, "swiglu")
    size = 2048 * 11008 * 2
    assert swiglu.time_us == pytest.approx(2 * (2 * size + 3 * size) / (H200.bandwidth_gbs * 1e3))
    assert swiglu.expected_us == pytest.approx(2 * 3 * size / 0.75 / (H200.bandwidth_gbs * 1e3))
    saved = swiglu.time_us - swiglu.expected_us
    assert swiglu.speedup == pytest.approx(found.time_us / (found.time_us - saved))
    assert found.speedup > max(one.speedup for one in found.regions)
    gains = [one.time_us - one.expected_us for one in found.regions]
    assert gains == sorted(gains, reverse=True)
    products = 2 * 2 * 2048 * 4096 * (4 * 4096 + 3 * 11008) + 2 * 4 * 2048 * 2048 * 4096
    assert found.products_share == pytest.approx(products / (H200.half_tflops * 1e6) / found.time_us, rel=0.05)


def test_the_text_of_a_chain_computes_what_the_chain_does(searched: Searched) -> None:
    for one in searched.found.regions:
        if one.kind is RegionKind.CHAIN:
            assert one.source.startswith("import torch\n")
    namespace: dict[str, object] = {}
    exec(region(searched, "residual_rmsnorm").source, namespace)
    x, attention, norm = torch.randn(4, 64), torch.randn(4, 64), RMSNorm(64)
    total, normed = namespace["residual_rmsnorm"](x, attention, norm.weight)  # type: ignore[operator]
    torch.testing.assert_close(total, x + attention)
    torch.testing.assert_close(normed, norm(x + attention))


def test_the_listing_says_it_all(searched: Searched) -> None:
    text = "\n".join(found_lines(searched.found))
    assert "modelled" in text
    assert "SwiGLU (in GatedMlp)" in text
    assert "of 4 the playbook can write, free" in text
    assert found_svg(searched.found).count("<rect") == 1 + 2 * len(searched.found.regions)
    assert from_json(type(searched.found), to_json(searched.found)) == searched.found


def test_real_tensors_are_run_too_and_nothing_stays_behind() -> None:
    model = Model()
    hooks = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())
    recording = record(model, inputs(), {})
    assert all(one.is_meta for call in recording.calls for one in call.tensors)
    assert sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()) == hooks == 0
    assert sys.getprofile() is None
    names = [one.name for one in recording.operations]
    assert names.count("aten.scaled_dot_product_attention") == 2


def test_attention_that_is_written_out_is_one_region() -> None:
    found = search(WrittenOut(), (torch.randn(2, 4, 16, 8),), {}, "H200").found
    (listed,) = found.regions
    assert listed.title == "attention (attend)"


def attend(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.mT * 0.3, dim=-1) @ x


class WrittenOut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attend(x) @ x.mT


def test_nothing_is_made_up() -> None:
    found = search(nn.Linear(64, 64), (torch.randn(4, 64),), {}, "H200").found
    assert found.regions == ()
    assert found.speedup == 1.0
    assert "nothing was found" in found_lines(found)[-1]
    with pytest.raises(BadArgument, match="GatedMlp cannot be run with these inputs: RuntimeError: mat1 and mat2"):
        search(GatedMlp(8, 8), (torch.randn(4, 64),), {}, "H200")


def test_an_operation_costs_its_bytes_or_its_products_and_a_view_nothing() -> None:
    large = Layout((1 << 14, 1 << 12), torch.bfloat16)
    assert modelled_us(Operation("aten.neg", (large,), (large,), 0.0, False), H200) == pytest.approx(
        2 * large.size_bytes / (H200.bandwidth_gbs * 1e3)
    )
    assert modelled_us(Operation("aten.view", (large,), (large,), 0.0, True), H200) == 0.0
    small = Layout((8,), torch.bfloat16)
    assert modelled_us(Operation("aten.neg", (small,), (small,), 0.0, False), H200) == 2.0
    assert expected_us([small], [], H200) == 2.0


# -- the command --


def test_the_command_lists_and_writes(tmp_path: Path) -> None:
    (tmp_path / "tiny_model.py").write_text(Path(sys.modules[Model.__module__].__file__ or "").read_text())
    shapes = ("--shape", "x=2x16x64:f32", "--shape", "cos=16x16:f32", "--shape", "sin=16x16:f32")
    picture = tmp_path / "found.svg"
    done = tilewright(
        tmp_path,
        "find",
        f"{tmp_path}/tiny_model.py:Model(layers=1)",
        *shapes,
        "--json",
        "--plot",
        picture,
        "--gpu",
        "H200",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["name"] for one in found["found"]["regions"]} == {"RMSNorm", "residual_rmsnorm", "swiglu", "rotated"}
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("torch.nn:Linear(3, 4)", "no inputs are given; give the shape of each with --shape"),
        ("torch.nn.functional:silu", "is a function, not an nn.Module"),
        ("nowhere.py:Model", "nowhere.py: no such file"),
        ("a model of mine", "names no model; write PACKAGE.MODULE:NAME"),
    ],
)
def test_what_names_no_model_is_said_in_one_sentence(tmp_path: Path, model: str, message: str) -> None:
    done = tilewright(tmp_path, "find", model)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
