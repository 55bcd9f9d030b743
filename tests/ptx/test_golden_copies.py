"""mbarriers, bulk copies and tensor maps in the emulator against a real GPU, byte by byte.

`benchmarks/golden_copies.py` makes the file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.golden_copies import probes
from benchmarks.golden_tensor_copies import CopyProbe, refusals
from tests.ptx.harness import Outcome, prepare, shown

from tilewright.kernel_file import parse
from tilewright.ptx.launching import LaunchOptions
from tilewright.records import PROFILES, FindingKind

GOLDEN = Path(__file__).parent / "golden" / "h200_copies.npz"
PROBES = {probe.name: probe for probe in probes()}
QUICK = (
    "load_2d_corner",
    "load_swizzle_128_moved",
    "store_3d",
    "reduce_float16_add",
    "mbarrier_counts",
    "mbarrier_bytes",
    "form_named_barriers",
    "form_map_made",
    "form_cluster_sent",
)


@lru_cache(maxsize=1)
def stored() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def run(probe: CopyProbe) -> Outcome:
    x = torch.from_numpy(probe.input_words().copy())
    x = x.bfloat16() if probe.dtype == "bfloat16" else x
    call = prepare(parse(probe.source, f"{probe.name}.cu"), (x,), PROFILES["H200"])
    return call.run(LaunchOptions(workers=1), probe.pixel_box)


def emulate(probe: CopyProbe) -> np.ndarray:
    """The bytes of `y`; the kernel must run without a finding."""
    outcome = run(probe)
    assert outcome.completed
    assert outcome.findings == (), shown(outcome.findings)
    return outcome.results[0].contiguous().view(torch.uint8).numpy().ravel()


def _check(probe: CopyProbe) -> None:
    assert str(stored()[f"{probe.name}.identity"]) == probe.identity, "the probe has changed: record it again"
    expected, found = stored()[probe.name], emulate(probe)
    wrong = np.flatnonzero(expected != found)
    first = wrong[:8].tolist()
    assert not len(wrong), f"{len(wrong)} of {len(found)} bytes; at {first} {expected[first]}, here {found[first]}"


@pytest.mark.parametrize("name", QUICK)
def test_it_does_what_the_gpu_does(name: str) -> None:
    _check(PROBES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROBES if name not in QUICK])
def test_all_do_what_the_gpu_does(name: str) -> None:
    _check(PROBES[name])


def test_a_store_by_a_whole_warp_is_no_race() -> None:
    probe = PROBES["store_2d"]
    by_all = probe.source.replace("if (threadIdx.x == 0) {", "if (threadIdx.x < 32) {")
    assert by_all != probe.source
    assert np.array_equal(emulate(replace(probe, source=by_all)), emulate(probe))


@pytest.mark.parametrize("probe", refusals(), ids=lambda probe: probe.name)
def test_what_the_gpu_refuses_is_found(probe: CopyProbe) -> None:
    (finding,) = run(probe).findings
    assert finding.kind is FindingKind.BULK_COPY
    assert (
        "before the tensor" if "reduce_" not in probe.name or "before" in probe.name else "min and max"
    ) in finding.detail
