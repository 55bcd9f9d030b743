"""Kernels made by the loop, as Hub projects in small models of transformers: logits stay what they were."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exports.small_op import ATTENTION_KERNEL, ATTENTION_REFERENCE

from tilewright.exports.cuda_project import Target, export
from tilewright.exports.recognition import FORMS, Form, recognise
from tilewright.exports.source import Reference, from_files, from_run
from tilewright.records import DType, TensorSpec
from tilewright.store import RunFolder

os.environ.setdefault("HF_HUB_OFFLINE", "1")
kernels = pytest.importorskip("kernels")
pytestmark = pytest.mark.slow

RUNS = {
    "rmsnorm": Path(__file__).parent / "runs" / "rmsnorm",
    "silu": Path(__file__).parent / "runs" / "silu",
    "swiglu": Path(__file__).parents[2] / "gallery" / "swiglu",
    "rotary": Path(__file__).parents[2] / "gallery" / "rotary",
}
LAYERS = {"rmsnorm": "RMSNorm", "silu": "SiLU", "swiglu": "SwiGLUMLP", "rotary": "rotary_pos_emb"}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hub")
    for name, run in RUNS.items():
        source = from_run(RunFolder(run))
        export(replace(source, calls=source.calls[:1]), Target.HUB, folder / name, f"tw_{name}")
    return {name: folder / name for name in RUNS}


@pytest.fixture(scope="module")
def mapping(projects: dict[str, Path]) -> Iterator[None]:
    from transformers.models.llama.modeling_llama import LlamaMLP
    from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

    for mlp in (LlamaMLP, Qwen3MLP):
        kernels.replace_kernel_forward_from_hub(mlp, "SwiGLUMLP")
    found = {
        LAYERS[name]: {"cpu": kernels.LocalLayerRepository(repo_path=root, layer_name=LAYERS[name])}
        for name, root in projects.items()
    }
    kernels.register_kernel_mapping(found, inherit_mapping=False)
    yield
    kernels.register_kernel_mapping({}, inherit_mapping=False)


def small_model(kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
    }  # fmt: skip
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16)).eval()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_model_computes_the_same_with_them(kind: str, mapping: None, projects: dict[str, Path]) -> None:
    model = small_model(kind)
    tokens = torch.randint(0, 128, (2, 12), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before = model(tokens).logits
        said = model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0)
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu", use_fallback=False)
        after = model(tokens).logits
        again = model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.allclose(before, after, atol=1e-5, rtol=1e-5)
    assert torch.equal(said, again)
    for name, layer in LAYERS.items():
        swapped = [one for one in kernel_layers(model) if getattr(one, "kernel_layer_name", "") == layer]
        assert swapped, layer
        assert all(forward_module(one).startswith(f"_tw_{name}_cpu_") for one in swapped), layer


def kernel_layers(model: torch.nn.Module) -> Iterator[Any]:
    """Modules, and functions that transformers attaches to modules for `kernels` to find."""
    for module in model.modules():
        yield module
        yield from module.__dict__.get("_kernel_funcs", {}).values()


def forward_module(module: torch.nn.Module) -> str:
    """Where a layer's forward comes from: with a fallback that nobody noticed it would be transformers' own."""
    function = getattr(module.forward, "__func__", module.forward)
    found: str = function.__module__
    return found


def test_gradients_flow_through_them(mapping: None) -> None:
    model, same = small_model("llama"), small_model("llama")
    tokens = torch.arange(8)[None]
    mode = kernels.Mode.TRAINING
    kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    for one in (model, same):
        one(tokens, labels=tokens).loss.backward()
    for (name, one), (_, other) in zip(model.named_parameters(), same.named_parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5), name


def test_an_attention_serves_the_attention_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionInterface

    path = tmp_path / "attend.cu"
    path.write_text(ATTENTION_KERNEL)
    spec = TensorSpec.contiguous(DType.F32, (2, 4, 16, 16))
    source = replace(
        from_files([path]),
        calls=({"q": spec, "k": spec, "v": spec, "scale": 0.25},),
        reference=Reference(ATTENTION_REFERENCE, "attend"),
    )
    export(source, Target.HUB, tmp_path / "hub", "tw_attend", layer="attention")
    kernel = kernels.get_local_kernel(tmp_path / "hub")
    module, taken = sys.modules[f"{kernel.__name__}.attention"], []
    monkeypatch.setattr(module, "attend", lambda *arguments: taken.append(1) or kernel.attend(*arguments))
    AttentionInterface.register("tw_attend", kernel.attention)
    model = small_model("llama")
    tokens = torch.arange(1)[None]  # one token attends to itself: no mask, which is what this kernel takes
    with torch.no_grad():
        before = model(tokens).logits
        model.set_attn_implementation("tw_attend")
        after = model(tokens).logits
        longer = model(torch.arange(9)[None]).logits
        model.set_attn_implementation("eager")
        wanted = model(torch.arange(9)[None]).logits
    assert len(taken) == 2  # of two layers; with a mask, or causal, it is torch's own
    assert torch.allclose(before, after, atol=1e-5)
    assert torch.allclose(longer, wanted, atol=1e-5)


# -- recognising --


@pytest.mark.parametrize("name", RUNS)
def test_an_op_is_recognised_by_what_it_computes(name: str) -> None:
    form = recognise(from_run(RunFolder(RUNS[name])))
    assert form is not None
    assert form.layer == LAYERS[name]


def test_what_is_no_layer_is_not_taken_for_one() -> None:
    gallery = Path(__file__).parents[2] / "gallery"
    assert recognise(from_run(RunFolder(gallery / "soft_capped_square"))) is None
    assert Form("RMSNorm", ("x", "weight"), "eps") in FORMS
