"""Every record survives the trip through JSON, and JSON that is no record is refused with its path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from tilewright.records import (
    PROFILES,
    BoundPlan,
    Buffer,
    BufferRole,
    BuildRequest,
    Clearing,
    Data,
    DType,
    GpuProfile,
    InputTensor,
    Job,
    LateField,
    LibraryCall,
    MapField,
    Normal,
    PackedLaunch,
    PointerField,
    RecordError,
    TensorArgument,
    TensorMap,
    TensorSpec,
    formerly,
    from_json,
    to_json,
)

SPEC = TensorSpec.contiguous(DType.BF16, (3, 5))
LAUNCH = PackedLaunch(
    symbol="_Z1f",
    kernel="f<8>",
    grid=(3, 1, 1),
    block=(256, 1, 1),
    dynamic_smem_bytes=1024,
    cluster=(2, 1, 1),
    cooperative=False,
    pdl=True,
    parameters=((0, 8), (8, 4)),
    block_template=bytes(range(12)),
    pointers=(PointerField(0, "x"),),
    maps=(MapField(64, "m"),),
    late=(LateField(8, "<f", 0),),
    line=7,
)
JOB = Job(
    id="one",
    arch="sm_90a",
    cubin=b"\x00\xff\x7fELF",
    plan=BoundPlan(
        buffers=(Buffer("y", BufferRole.OUT, SPEC, Clearing.ZEROED),),
        maps=(TensorMap("m", "x", DType.BF16, (5, 3), (10,), (8, 1), (1, 1), 128, False, 128),),
        steps=(LAUNCH, LibraryCall("t", "aten.mm", (TensorArgument("x"), 1.5, True, 2, (1, 2), None, DType.F32), 8)),
    ),
    inputs=(InputTensor("x", SPEC, Normal(seed=3)), InputTensor("w", SPEC, Data(b"ab"))),
    returns=("y",),
)


def through_text(value: object) -> Any:
    return json.loads(json.dumps(to_json(value)))


def test_job_round_trip() -> None:
    assert from_json(Job, through_text(JOB)) == JOB


def test_union_members_keep_their_type() -> None:
    request = BuildRequest("", (("A", 1), ("B", True), ("C", 1.0), ("D", DType.F16)), ("f",), "sm_80")
    back = from_json(BuildRequest, through_text(request))
    assert [type(value) for _, value in back.constants] == [int, bool, float, DType]


def test_profile_round_trip() -> None:
    for profile in PROFILES.values():
        assert from_json(GpuProfile, through_text(profile)) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("cubin"), "missing key 'cubin'"),
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d.update(cubin="%%%"), "Job.cubin: not base64"),
        (lambda d: d.update(id=3), "Job.id: expected str, found int"),
        (lambda d: d["inputs"][0]["content"].update({"is": "Zeros"}), "no record called 'Zeros'"),
        (lambda d: d["inputs"][0]["spec"].update(dtype="f12"), "'f12' is not one of"),
        (lambda d: d["plan"]["steps"][0].update(grid=[1, 2]), "grid: expected 3 items, found 2"),
        (
            lambda d: d["inputs"][1]["spec"].update(shape=[3, "5"]),
            r"Job.inputs\[1\].spec.shape\[1\]: expected int, found str",
        ),
        (lambda d: d["inputs"][1]["spec"].update(dtype=[]), r"Job.inputs\[1\].spec.dtype: \[\] is not one of"),
        (lambda d: d["inputs"][0]["content"].update({"is": ["Normal"]}), r"no record called \['Normal'\] belongs here"),
        (lambda d: d.update({"is": "Build"}), "expected Job, found 'Build'"),
    ],
)
def test_what_is_no_record_is_refused(change: Any, message: str) -> None:
    data = through_text(JOB)
    change(data)
    with pytest.raises(RecordError, match=message.replace("(", r"\(")):
        from_json(Job, data)


# -- what earlier versions stored --


@formerly(values={"blau": "blue"})
class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@formerly(derived={"heavy": lambda data: data["grams"] > 99})
@dataclass(frozen=True)
class Marble:
    radius_mm: int
    grams: int
    colour: Colour
    heavy: bool


@dataclass(frozen=True)
class Box:
    content: Marble | DType | None


MARBLE = Marble(8, 100, Colour.BLUE, True)


def test_former_values_are_read_and_not_written() -> None:
    former = {"is": "Marble", "radius_mm": 8, "grams": 100, "colour": "blau"}
    assert from_json(Marble, former) == MARBLE
    assert from_json(Box, {"is": "Box", "content": former}) == Box(MARBLE)
    assert through_text(MARBLE) == {"is": "Marble", "radius_mm": 8, "grams": 100, "colour": "blue", "heavy": True}
    assert from_json(Marble, through_text(MARBLE)) == MARBLE


def test_what_is_stored_counts_before_what_could_be_derived() -> None:
    assert not from_json(Marble, {**through_text(MARBLE), "heavy": False}).heavy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is": "Cube"}, "expected Marble, found 'Cube'"),
        ({"width_mm": 8}, "unknown key 'width_mm'"),
        ({"colour": "grün"}, "'grün' is not one of"),
        ({"colour": ["blau"]}, "is not one of"),
    ],
)
def test_what_was_never_so_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        from_json(Marble, {**through_text(MARBLE), **change})
