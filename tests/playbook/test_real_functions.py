"""Functions that people write kernels for today: written as loops, and verified at small odd sizes without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.playbook.random_functions import Drawn, outcome
from tests.tasks.in_process import JudgingReference, probed

from tilewright.devices.child_device import EmulatedDevice
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import any_graph
from tilewright.records import PROFILES
from tilewright.tasks import task_op_line

_SOURCE = (Path(__file__).parent / "real_functions.py").read_text()

# shapes, what integers and probabilities are drawn from, and numbers
CASES: dict[str, tuple[str, ...]] = {
    "group_limited_router": ("logits=7x24:bf16 bias=24:f32",),
    "router": ("x=9x13:bf16 gate=7x13:bf16",),
    "aligned_permutation": ("experts=37:i64", "experts=integers:0:6"),
    "combine": ("y=13x9:f32 token=13:i64 weight=13:f32 tokens=7x9:f32", "token=integers:0:7"),
    "load_balance": ("logits=9x7:f32 experts=9x2:i64", "experts=integers:0:7"),
    "paged_decode": (
        "q=3x2x6:bf16 keys=11x4x2x6:bf16 values=11x4x2x6:bf16 table=3x5:i64 lengths=3:i64",
        "table=integers:0:11 lengths=integers:1:20",
    ),
    "mla_decode": (
        "q=3x5x12:bf16 q_rope=3x5x4:bf16 compressed=3x13x12:bf16 k_rope=3x13x4:bf16 lengths=3:i64",
        "lengths=integers:1:13",
    ),
    "sink_window": ("q=2x3x11x6:bf16 k=2x3x11x6:bf16 v=2x3x11x6:bf16 sinks=3:bf16",),
    "capped_attention": ("q=2x3x11x6:f32 k=2x3x11x6:f32 v=2x3x11x6:f32",),
    "alibi_attention": ("q=2x3x11x6:f32 k=2x3x11x6:f32 v=2x3x11x6:f32",),
    "packed_sequences": ("q=13x3x6:f32 k=13x3x6:f32 v=13x3x6:f32 lengths=4:i64", "lengths=integers:1:5"),
    "triangle_softmax": ("scores=2x3x9x9:f32",),
    "differential_attention": ("q=2x3x9x10:f32 k=2x3x9x10:f32 v=2x3x9x7:f32 lam=1:f32",),
    "relative_bias": ("table=8x3:f32 q=2x3x11x11:f32",),
    "qk_norm_rope": ("q=2x7x3x10:bf16 k=2x7x3x10:bf16 wq=10:bf16 wk=10:bf16 cos=7x10:bf16 sin=7x10:bf16",),
    "rotary_tables": ("x=2x7x10:bf16 positions=2x7:i64 inverse=5:f32", "positions=integers:0:50"),
    "interleaved_rope": ("x=7x3x10:bf16 positions=7:i64", "positions=integers:0:50"),
    "append_to_cache": ("cache=17x2x5:bf16 k=7x2x5:bf16 start=1:i64", "start=integers:0:9"),
    "append_fp8": (
        "cache=17x2x5:f8e4m3 k=7x2x5:bf16 start=1:i64 scale=1:f32",
        "start=integers:0:9 scale=uniform:0.5:2",
    ),
    "qwen_attention": (
        "x=2x7x20:f32 wq=24x20:f32 wk=12x20:f32 wv=12x20:f32 wo=20x24:f32 nq=6:f32 nk=6:f32 cos=7x6:f32 sin=7x6:f32",
    ),
    "quantise_groups": ("x=7x48:bf16",),
    "quantise_blocks": ("w=16x24:bf16",),
    "block_scaled_gemm": ("a=9x24:f8e4m3 b=16x24:f8e4m3 a_scale=9x3:f32 b_scale=2x3:f32",),
    "silu_mul_quantise": ("x=7x26:bf16",),
    "int4_gemm": ("x=5x48:bf16 packed=9x6:i32 scales=9x6:f16 zeros=9x6:i8", "zeros=integers:0:16"),
    "w8a8_gemm": ("x=7x26:bf16 w=9x26:i8 w_scale=9:f32",),
    "pack_int4": ("x=7x48:f32",),
    "hadamard": ("x=7x16:bf16",),
    "conv_state_step": ("x=3x7:f32 state=3x7x4:f32 weight=7x4:f32 bias=7:f32",),
    "causal_conv": ("x=3x7x13:f32 weight=7x1x4:f32 bias=7:f32",),
    "state_update": ("state=3x7x5:f32 x=3x7:f32 dt=3x7:f32 a=7x5:f32 b=3x5:f32 c=3x5:f32 d=7:f32", "a=uniform:-2:-0.5"),
    "chunk_of_scan": ("x=2x9x5:f32 a=2x9:f32 b=2x9x7:f32 c=2x9x7:f32", "a=uniform:-1:0"),
    "gated_sums": ("gate=2x9x5:f32 x=2x9x5:f32",),
    "delta_step": ("state=2x3x5x7:f32 q=2x3x5:f32 k=2x3x5:f32 v=2x3x7:f32 beta=2x3:f32 decay=2x3:f32",),
    "top_p_probabilities": ("logits=5x37:f32 p=5:f32", "p=uniform:0.5:1"),
    "min_p_filter": ("logits=5x37:f32", "", "temperature=0.7"),
    "sparsemax": ("x=5x37:f32",),
    "penalties": (
        "logits=5x37:f32 counts=5x37:f32",
        "counts=integers:0:4",
        "frequency=0.3 presence=0.1 repetition=1.2",
    ),
    "fused_linear_loss": ("x=9x13:bf16 w=37x13:bf16 target=9:i64", "target=integers:0:37"),
    "shifted_loss": ("logits=2x9x37:bf16 labels=2x9:i64", "labels=integers:0:37"),
    "log_probability_and_entropy": ("logits=2x9x37:bf16 labels=2x9:i64", "labels=integers:0:37"),
    "smoothed": ("logits=9x37:f32 labels=9:i64", "labels=integers:0:37"),
    "group_policy_loss": (
        "logp=5x9:f32 old=5x9:f32 reference=5x9:f32 advantage=5:f32 mask=5x9:f32",
        "mask=integers:0:2",
    ),
    "focal": ("logits=5x9:f32 target=5x9:f32", "target=uniform:0:1"),
    "cross_entropy_backward": ("logits=5x37:bf16 labels=5:i64 grad=5:f32", "labels=integers:0:37"),
    "box_overlap": ("a=7x4:f32 b=9x4:f32", "a=uniform:0:1 b=uniform:0:1"),
    "rms_norm_backward": ("x=7x37:bf16 w=37:bf16 grad=7x37:bf16",),
    "group_norm_silu_backward": ("x=3x6x5x7:f32 w=6:f32 b=6:f32 grad=3x6x5x7:f32",),
    "swiglu_backward": ("a=7x37:f32 b=7x37:f32 grad=7x37:f32",),
    "layer_norm_gelu_backward": ("x=7x37:f32 w=37:f32 grad=7x37:f32",),
    "adamw": (
        "p=37:f32 g=37:f32 m=37:f32 v=37:f32",
        "v=uniform:0:1",
        "lr=0.001 b1=0.9 b2=0.95 eps=1e-8 wd=0.1 step=10",
    ),
    "adam_8bit": ("p=48:f32 g=48:f32 m=48:i8 v=48:u8 m_scale=3:f32 v_scale=3:f32", "v_scale=uniform:0.1:1", "lr=0.001"),
    "newton_schulz": ("g=7x11:f32",),
    "sgd_momentum": ("p=37:f32 g=37:f32 buffer=37:f32", "", "lr=0.01 momentum=0.9"),
    "sinkhorn": ("x=5x4x4:f32",),
    "modulated_norm": ("x=2x7x13:f32 shift=2x13:f32 scale=2x13:f32 gate=2x13:f32 y=2x7x13:f32",),
    "segment_mean": ("x=37x5:f32 segment=37:i64 like=7x5:f32", "segment=integers:0:7"),
    "graph_softmax": ("score=37:f32 target=37:i64 nodes=7:f32", "target=integers:0:7"),
    "histogram": ("x=37:f32", "x=uniform:0:1"),
    "bicubic": ("x=2x3x5x7:f32",),
    "antialiased_shrink": ("x=2x3x9x11:f32",),
    "sampled": ("x=2x3x5x7:f32 grid=2x4x6x2:f32", "grid=uniform:-1.2:1.2"),
    "convnext_block": (
        "x=2x6x5x7:f32 dw=6x1x7x7:f32 db=6:f32 lw=6:f32 lb=6:f32 w1=24x6:f32 b1=24:f32 w2=6x24:f32 b2=6:f32 "
        "gamma=6:f32",
    ),
    "squeeze_excite": ("x=2x6x5x7:f32 w1=3x6:f32 w2=6x3:f32",),
    "mel_features": ("spectrum=2x9x13:f32 filters=7x13:f32",),
    "rank_fusion": ("a=5x13:f32 b=5x13:f32",),
    "fused_add_rms_norm": ("x=9x37:bf16 residual=9x37:bf16 weight=37:bf16",),
    "q_norm_rope": ("q=2x7x3x10:bf16 weight=10:bf16 cos=7x10:bf16 sin=7x10:bf16",),
    "swiglu_packed": ("x=9x38:bf16",),
    "poly_norm": ("x=9x37:bf16 weight=3:f32 bias=1:f32",),
    "softcap_softmax": ("x=9x37:bf16",),
    "jsd": ("p_logits=9x37:bf16 q_logits=9x37:bf16",),
    "quant_int8_groups": ("x=9x384:bf16",),
    "quant_fp8_rows": ("x=9x37:bf16",),
    "dequant_int4": ("packed=9x48:i32 scales=9x3:f16",),
    "w8a16_gemv": ("x=1x37:bf16 w=29x37:i8 scale=29:f32",),
    "moe_router": ("logits=11x37:bf16",),
    "gather_rows": ("x=23x17:bf16 index=31:i64",),
    "chunk_states": ("b=2x3x5x7x9:f32 decay=2x3x5x7:f32 x=2x3x5x7x6:f32",),
    "linear_attention": ("q=2x3x11x6:bf16 k=2x3x11x6:bf16 v=2x3x11x6:bf16",),
    "gqa_causal": ("q=2x6x11x6:bf16 k=2x3x11x6:bf16 v=2x3x11x6:bf16",),
    "sliding_window": ("q=2x3x11x6:bf16 k=2x3x11x6:bf16 v=2x3x11x6:bf16",),
    "lora": ("x=9x37:bf16 w=29x37:bf16 a=5x37:bf16 b=29x5:bf16",),
    "embed_norm": ("ids=3x5:i64 tok=19x10:bf16 pos=7x10:bf16 w=10:bf16 b=10:bf16",),
    "bilinear_up": ("x=2x3x5x7:f16",),
    "convnext_dw": ("x=2x5x9x11:f16 w=5x1x7x7:f16 b=5:f16 g=5:f16 be=5:f16",),
    "conv_bn_relu": ("x=2x6x9x11:bf16 w=7x6x3x3:bf16 mean=7:bf16 var=7:bf16 g=7:bf16 b=7:bf16", "var=uniform:0.5:2"),
    "scatter_mean": ("x=37x9:f32 index=37:i64",),
    "image_normalise": ("x=2x5x7x3:u8",),
    "info_nce": ("a=9x13:bf16 b=9x13:bf16",),
    "decode_attention": ("q=3x6x1x10:bf16 k=3x2x13x10:bf16 v=3x2x13x10:bf16",),
    "top_p_mask": ("logits=5x37:f32",),
}
QUICK = ("combine", "append_fp8", "quantise_groups", "pack_int4", "swiglu_backward", "histogram", "adamw", "penalties")


def drawn(name: str) -> Drawn:
    shapes, values, numbers = (dict(one.split("=") for one in text.split()) for text in (*CASES[name], "", "")[:3])
    return Drawn(name, _SOURCE, shapes, values, numbers)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    torch.set_num_threads(1)
    with EmulatedDevice(PROFILES["H200"]) as made:
        yield made


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_are_verified(name: str, device: EmulatedDevice) -> None:
    found = outcome(drawn(name), device, loops=True)
    assert found.word == "verified", found.said


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(QUICK)))
def test_they_are_verified(name: str, device: EmulatedDevice) -> None:
    found = outcome(drawn(name), device, loops=True)
    assert found.word == "verified", found.said


@pytest.mark.parametrize("name", ["adamw", "min_p_filter", "penalties", "sgd_momentum"])
def test_numbers_are_arguments(name: str) -> None:
    """No file is for one step, one rate or one temperature alone."""
    given = drawn(name)
    task, _ = probed(given.source, name, given.shapes, given.numbers, given.values)
    with JudgingReference(task.reference, task.function) as reference:
        text = any_graph(task, lambda request: trace(reference.function, request)).draft.write(task_op_line(task))
    assert not [one for one in given.numbers if f" {one} ==" in text]
