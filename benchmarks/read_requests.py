"""How many requests in a stranger's words are read right: `python benchmarks/read_requests.py REQUESTS.json`.

The list has, of each request, `words`, `shapes` as the person gave them, a `reference` that computes what was meant (a
function f), its small `inputs` and the `kind`: what is ambiguous or impossible is to be asked about or refused.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import random
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tilewright.words import NotUnderstood, SeveralReadings, read

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32}
_DTYPES |= {"i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "f64": torch.float64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--all", action="store_true", help="show those that are read right too")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for one in json.loads(given.requests.read_text(encoding="utf-8")):
        outcome, note = judged(one)
        counts[outcome] += 1
        if given.all or outcome not in ("right", "refused, as it should be", "asked, as it should be"):
            print(f"{outcome:22} {one['kind']:10} {one['words']!r}\n    {note}")
    total = sum(counts.values())
    print(", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common()), f"of {total}")


def judged(one: dict[str, Any]) -> tuple[str, str]:
    """What became of a request, and why."""
    impossible, ambiguous = one["kind"] == "impossible", one["kind"] == "ambiguous"
    try:
        made = read(one["words"], one["shapes"])
    except SeveralReadings as error:
        return "asked, as it should be" if ambiguous else "asked", str(error)
    except NotUnderstood as error:
        return "refused, as it should be" if impossible or ambiguous else "refused", str(error)
    except Exception as error:  # a bug of the reader
        return "ERROR", f"{type(error).__name__}: {error}"
    if impossible:
        return "WRONG", made.reference
    said = "; ".join(made.assumptions)
    try:
        same = agrees(made.reference, made.description, one)
    except Exception as error:  # whatever a reference raises, it cannot be compared
        return "not compared", f"{type(error).__name__}: {str(error)[:200]}\n{made.reference}{said}"
    if same:
        return "right", said
    return ("assumed" if ambiguous else "WRONG"), f"{made.reference}{said}"


def agrees(reference: str, description: str, one: dict[str, Any]) -> bool:
    """Whether both functions give the same for the same tensors, in one of the orders of those that are alike."""
    expected: dict[str, Any] = {}
    exec(one["reference"], expected)
    inputs = drawn(one["inputs"])
    wanted = _results(expected["f"](*[_copied(each) for each in inputs]))
    scope: dict[str, Any] = {}
    exec(reference, scope)
    described = tomllib.loads(description)
    function = scope[described["function"]]
    tensors = sum(isinstance(each, str) for each in described["inputs"].values())
    assert tensors <= len(inputs) <= 8, f"{tensors} tensors, and {len(inputs)} are expected"
    numbers = len(inspect.signature(function).parameters) - tensors
    assert numbers >= 0
    for order in itertools.islice(itertools.permutations(range(len(inputs)), tensors), 400):
        try:
            got = _results(function(*[_copied(inputs[place]) for place in order]))
        except Exception:
            continue
        if _alike(got, wanted):
            return True
    return False


def drawn(inputs: dict[str, Any]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    random.seed(0)
    found = []
    for shape, dtype in inputs.values():
        kind = _DTYPES[dtype]
        if kind.is_floating_point:
            found.append((torch.rand(shape, generator=generator) * 0.8 + 0.1).to(kind))
        else:
            found.append(torch.randint(0, 2 if kind is torch.bool else 4, shape, generator=generator).to(kind))
    return found


def _copied(one: torch.Tensor) -> torch.Tensor:
    return one.clone()


def _results(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _alike(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    if len(got) != len(wanted):
        return False
    return any(all(_close(a, b) for a, b in zip(order, wanted, strict=True)) for order in itertools.permutations(got))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() != other.numel() or [s for s in one.shape if s > 1] != [s for s in other.shape if s > 1]:
        return False
    low = torch.bfloat16 in (one.dtype, other.dtype) or torch.float16 in (one.dtype, other.dtype)
    tolerance = 2e-2 if low else 1e-4
    return torch.allclose(
        one.double().flatten(), other.double().flatten(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


if __name__ == "__main__":
    main()
