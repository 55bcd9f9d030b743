"""Small, randomly initialised models of transformers: what is found in them, and with kernels in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frontends.finding.drafts import drafting
from tests.frontends.in_process import tilewright
from tests.tasks.in_process import ask_here

import tilewright as tw
from tilewright.frontends.api.objects import object_request
from tilewright.frontends.api.requests import task_of
from tilewright.frontends.finding.finding import Finding

transformers = pytest.importorskip("transformers")
from transformers.models.llama import modeling_llama  # noqa: E402

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = {"llama": {**SMALL, **HEADS}, "qwen3": {**SMALL, **HEADS, "head_dim": 16}}
TOKENS = torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def small(kind: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **KINDS[kind], pad_token_id=0, **more)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@pytest.fixture(scope="module", autouse=True)
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        ask_here(patch)
        drafting(patch)
        yield


@pytest.fixture(scope="module", params=[*KINDS])
def made(request: pytest.FixtureRequest) -> Finding:
    model = small(request.param, torch.float32 if request.param == "llama" else torch.bfloat16)
    return tw.find(model, TOKENS, gpu="H200").make()


def test_the_regions_of_a_language_model(made: Finding) -> None:
    norm = {"LlamaForCausalLM": "LlamaRMSNorm", "Qwen3ForCausalLM": "Qwen3RMSNorm"}[made.found.model]
    listed = [one.title for one in made.found.regions]
    mlp, layer = norm.replace("RMSNorm", "MLP"), norm.replace("RMSNorm", "DecoderLayer")
    for title in (norm, f"residual + RMSNorm (in {layer})", f"SwiGLU (in {mlp})"):
        assert title in listed
    assert "rotary embedding (apply_rotary_pos_emb)" in listed
    assert listed.count(norm) == (1 if norm.startswith("Llama") else 3)  # Qwen's are of queries and keys too


def test_the_swapped_model_says_the_same(made: Finding) -> None:
    model = made._searched.model
    keys = list(model.state_dict())
    with torch.no_grad():
        before = model(TOKENS).logits
        words = model.generate(TOKENS, max_new_tokens=3, do_sample=False)  # type: ignore[operator]
        with made.swap() as swap:
            assert swap.agreement.is_honest
            assert swap.refused == {}
            assert swap.replaced[f"SwiGLU (in {type(model.model.layers[0].mlp).__name__})"] == 2  # type: ignore[union-attr,index]
            after = model(TOKENS)
            assert type(after) is type(model(TOKENS))
            narrow = before.dtype is torch.bfloat16
            torch.testing.assert_close(after.logits, before, rtol=1e-4 + 0.05 * narrow, atol=1e-5 + 0.02 * narrow)
            again = model.generate(TOKENS, max_new_tokens=3, do_sample=False)  # type: ignore[operator]
            assert again.shape == words.shape
            assert narrow or torch.equal(again, words)  # of 16 bits two words may be as likely
            assert list(model.state_dict()) == keys
        assert torch.equal(model(TOKENS).logits, before)


@pytest.mark.slow
def test_real_sizes_are_listed_without_memory(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "find", "llama(num_hidden_layers=2)", "--json", "--gpu", "H200")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found"]
    shapes = {one["name"]: one["inputs"] for one in found["regions"]}
    assert shapes["swiglu"] == {"gate_proj": "1x2048x11008:bf16", "up_proj": "1x2048x11008:bf16"}
    assert shapes["apply_rotary_pos_emb"]["q"] == "1x32x2048x128:bf16"
    assert not found["measured"]
    assert 0.5 < found["products_share"] < 0.95


def test_what_is_no_kind_of_model_is_said(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "find", "nothing-like-this")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "no kind of transformers model is called nothing-like-this" in done.stderr
    done = tilewright(tmp_path, "find", "llama(num_hidden_layers=)")
    assert done.returncode == 2
    assert "the arguments of a configuration are such as num_hidden_layers=4" in done.stderr


def test_layers_of_transformers_become_tasks_that_need_no_transformers() -> None:
    config = transformers.LlamaConfig(**KINDS["llama"])
    norm = object_request(modeling_llama.LlamaRMSNorm(64), {"x": "8x64:f32"}, {}, {})
    mlp = object_request(modeling_llama.LlamaMLP(config), {"x": "8x64:f32"}, {}, {})
    rotary = object_request(
        modeling_llama.apply_rotary_pos_emb,
        {"q": "2x4x6x16:f32", "k": "2x2x6x16:f32", "cos": "2x6x16:f32", "sin": "2x6x16:f32"},
        {},
        {},
    )
    for one in (norm, mlp, rotary):
        assert "transformers" not in one.request.text
        task = task_of(one.request)
        assert task is not None
    task = task_of(norm.request)
    assert task is not None
    assert {one.name: one.varies for one in task.dimensions} == {"rows": True, "cols": True}
    assert "always variance_epsilon = 1e-06" in task.assumptions


def test_a_layer_whose_methods_are_wrapped_is_imported() -> None:
    rotary = modeling_llama.LlamaRotaryEmbedding(transformers.LlamaConfig(**KINDS["llama"]))
    text = object_request(rotary, {}, {}, {}).request
    assert "from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding" in text.text
    namespace: dict[str, Any] = {}
    exec(text.text, namespace)
    again = eval(text.module, namespace)
    x, places = torch.randn(1, 6, 64), torch.arange(6)[None]
    state = {"inv_freq": rotary.inv_freq}
    made = torch.func.functional_call(again, state, (x, places))
    torch.testing.assert_close(made, rotary(x, places))
