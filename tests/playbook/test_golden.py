"""The playbook's kernel files are the ones that `golden/kernels.txt` lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.playbook.golden.check import further_tasks
from tests.playbook.golden.kernels import code_of, read_list, written

_LISTED = read_list()
_TASKS = further_tasks()
_QUICK = (
    "rows/layernorm_gelu",
    "rows/softmax",
    "rows/middle_sum",
    "rows/batch_norm_train",
    "rows/scaled_and_summed",
    "rows/bias_gelu",
    "gemms/finished",
    "gemms/half_linear",
    "gemms/two_layers",
    "gemms/matrix_vector",
    "placed/causal",
    "placed/grouped_causal",
    "placed/rotated",
    "placed/transposed",
)
_OTHERS = [pytest.param(one, marks=pytest.mark.slow) for one in _TASKS if one not in _QUICK]
_REMEDY = "see `python -m tests.playbook.golden.check --diff`, and where the change is meant, its --write"


@pytest.mark.parametrize("name", [*_QUICK, *_OTHERS])
def test_the_files_of_a_task_are_as_listed(name: str) -> None:
    found = {one.structure: one.hash for one in written(name, _TASKS[name])}
    assert found == {structure: row[0] for (task, structure), row in _LISTED.items() if task == name}, _REMEDY


def test_code_is_the_same_wherever_it_stands() -> None:
    """Names, lines and comments are no part of it; what is computed is."""
    found = {one.structure: one for one in written("rows/silu", _TASKS["rows/silu"])}
    one = found["vectors"]
    code = code_of(one, "A100")
    renamed = replace(one, text="// A line more.\n" + one.text.replace("silu_vectors", "other").replace("y0_made", "y"))
    assert code_of(renamed, "A100") == code
    assert code_of(replace(one, text=one.text.replace("1.44269504f", "1.44269505e1f")), "A100") != code
    assert code_of(found["vectors-uncached"], "A100") != code
