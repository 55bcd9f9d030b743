"""Inside the child: which sizes of a function's tensors hang together, which may vary, and what it returns.

Nothing is concluded from the source: the function is called at other sizes, and what it accepts is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.records import IndexValues, IntegerValues
from tilewright.tasks.least_sizes import find_least
from tilewright.tasks.output_sizes import fit_outputs
from tilewright.tasks.probing_records import ProbeAnswer, ProbedTensor, ProbeRequest
from tilewright.tasks.settling import indexed_labels, settle_values
from tilewright.tasks.size_search import SizeSearch
from tilewright.tasks.trials import Trials, single_thread

_SECONDS = 40.0  # after which what was not tried counts as fixed


def probe(function: Callable[..., Any], request: ProbeRequest) -> ProbeAnswer:
    """Everything about shapes that calling the function tells."""
    for for_real in (False, True):
        search = SizeSearch(Trials(function, request.tensors, request.numbers, _SECONDS, for_real), request)
        nominal = search.nominal()
        with single_thread():
            search.shrink()
            if request.unlink:
                search.unlink()
            search.find_varying()
            outputs = fit_outputs(search, nominal)
            if search.holds():  # else calls without content were believed that fail with content
                break
    with single_thread():
        if find_least(search):
            outputs = fit_outputs(search, nominal)
    tensors = [replace(one, labels=search.labels_of(position)) for position, one in enumerate(request.tensors)]
    indexed = indexed_labels(function, tensors, request.numbers, search.small_sizes(), search.moving)
    for position, label in indexed.items():
        values = tensors[position].values
        assert isinstance(values, IntegerValues)
        if search.size_of(label) == values.high:
            tensors[position] = replace(tensors[position], values=IndexValues(label))
        else:
            search.hold(label, f"{tensors[position].name} holds numbers up to {values.high - 1} that index it")
    held, notes = settle_values(function, tensors, request.numbers, search.small_sizes(), search.moving)
    return ProbeAnswer(
        tuple(
            ProbedTensor(one.labels, values, one.name in nominal.changed)
            for one, values in zip(tensors, held, strict=True)
        ),
        search.dimensions(),
        outputs,
        (*search.notes, *notes),
    )
