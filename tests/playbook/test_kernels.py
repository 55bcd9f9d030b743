"""Kernel files of the playbook, built and run on the emulator against PyTorch in f64."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import BY_NAME, FUNCTIONS, SIZES, Function, ask_of, draw, program_of, task_of

import tilewright
from tilewright.kernel_file import evaluate, parse
from tilewright.playbook.catalogue import row_schedules
from tilewright.playbook.families import Structure
from tilewright.playbook.understanding import answer
from tilewright.records import PROFILES, Build, NumberInput
from tilewright.runtime.errors import NoKernelApplies
from tilewright.tasks import task_op_line
from tilewright.toolchain import build

QUICK = (
    "layernorm_gelu",
    "where_greatest",
    "mean_loss",
    "masked_softmax",
    "gate",
    "scaled_and_summed",
    "bias_gelu",
    "middle_places",
    "masked_mean",
    "weighted_middle",
    "channel_rmsnorm",
    "batch_norm_train",
)
STAGED = [
    ("layernorm", ((5, 70000), (40, 4100), (3, 4), (3, 37))),
    ("l2", ((40, 32768), (7, 9000))),
    ("layernorm_gelu", ((5, 20008), (2, 1001))),
]
CLUSTER = "cluster-ahead"  # takes as long to build as the others together


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_the_baseline_is_right_at_odd_sizes(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    found = answer(task, ask_of(function))
    op = load_structure(found.draft, task, tmp_path)
    assert found.draft.id in ("loops", "loops-quick")
    for rows, cols in ((1, 3), (2, 127), (1, 1000)):
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.parametrize("name", QUICK)
def test_every_structure_is_right(name: str, tmp_path: Path) -> None:
    function = BY_NAME[name]
    task = task_of(function)
    program = program_of(function, task)
    for step in row_schedules(program).every:
        if step.id == CLUSTER and name != QUICK[0]:
            continue
        _check_all(step, function, ((3, 512), (2, 127)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_every_structure_of_every_function_is_right(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    program = program_of(function, task)
    for step in row_schedules(program).every:
        for variant in (step, step.safer, step.polished):
            if variant is None:
                continue
            _check_all(variant, function, ((1, 1), (5, 3), (2, 127), (1, 1000), (3, 1024)), tmp_path)


def _check_all(step: Structure, function: Function, sizes: tuple[tuple[int, int], ...], folder: Path) -> None:
    task = task_of(function)
    op = load_structure(step, task, folder)
    for rows, cols in sizes:
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.parametrize(
    ("name", "cols"),
    [
        ("layernorm_gelu", 2056),
        ("layernorm_gelu", 120001),
        pytest.param("add_rmsnorm", 2056, marks=pytest.mark.slow),
        ("softmax", 1001),
        ("where_greatest", 60001),
    ],
)
def test_rows_longer_than_a_structure_holds_are_right_too(name: str, cols: int, tmp_path: Path) -> None:
    """Beyond registers, beyond shared memory, and where no vector fits the row's length."""
    function = BY_NAME[name]
    for step in row_schedules(program_of(function, task_of(function))).every:
        if step.id != CLUSTER:
            _check_all(step, function, ((2, cols),), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("made_for", [1024, 200000])
@pytest.mark.parametrize("name", ["layernorm_gelu", "softmax", "masked_softmax", "add_rmsnorm"])
def test_long_rows_of_a_cluster_are_right_and_clean(name: str, made_for: int, tmp_path: Path) -> None:
    """In order and in random schedules, on blocks of a few shares and of one; by messages, and by the cluster's barrier
    where a file is made for longer rows."""
    function = BY_NAME[name]
    task = task_of(function, {**SIZES, "cols": made_for})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == CLUSTER)
    op = load_structure(step, task, tmp_path)
    for rows, cols in ((3, 33000), (2, 60001), (1, 120001)):
        check(op, function, task, sizes_at(task, rows, cols))
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
        assert op.emulate(*given, gpu="H200", schedules=3).findings == (), (rows, cols)


def _check_findings(name: str, gpus: tuple[str, ...], sizes: tuple[tuple[int, int], ...], folder: Path) -> None:
    """All checkers of the emulator, besides the results."""
    function = BY_NAME[name]
    task = task_of(function)
    for step in row_schedules(program_of(function, task)).every:
        op = load_structure(step, task, folder)
        for rows, cols in sizes:
            tensors = draw(task, sizes_at(task, rows, cols), 1)
            given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
            for gpu in gpus:
                if PROFILES[gpu].cc < 90 and step.id.startswith(("cluster", "grid-stages")):
                    with pytest.raises(NoKernelApplies, match=r"device\.cc >= 90"):
                        op.emulate(*given, gpu=gpu)
                    continue
                assert op.emulate(*given, gpu=gpu).findings == (), (step.id, gpu, rows, cols)


CHECKED = """
middle_places channel_rmsnorm first_softmax batch_norm_train layernorm softmax hinge where_greatest group_norm
add_rmsnorm
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED.split())
def test_the_checkers_find_nothing_on_three_generations(name: str, tmp_path: Path) -> None:
    _check_findings(name, ("A100", "RTX 4090", "H200"), ((3, 37), (2, 128)), tmp_path)


@pytest.mark.parametrize(("name", "cols"), [("layernorm", 1024), ("softmax", 1023)])
def test_blocks_that_go_on_to_other_rows_are_right(name: str, cols: int, tmp_path: Path) -> None:
    """More rows than teams: what one row leaves behind must not reach the next. Made for odd rows, a file takes vectors
    from the next line of memory on. Rows of 264000 take every block of the grid."""
    function = BY_NAME[name]
    task = task_of(function, {**SIZES, "cols": cols})
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["grid-ahead"], task, tmp_path)
    for rows, length in ((7, 37), (3, 2), (3, 263000 + cols)):
        check(op, function, task, sizes_at(task, rows, length))


@pytest.mark.parametrize(
    ("name", "id", "gpu", "rows", "length"),
    [
        ("softmax", "cluster-ahead", "GB10", 120, 37),  # five rows a cluster: barriers come to every phase again
        ("layernorm", "cluster-ahead", "GB10", 50, 4101),
        ("layernorm", "passes", "A100", 37, 9000),  # three groups of rows that are written together, the last smaller
    ],
)
def test_rows_shared_by_blocks_are_right_and_clean(
    name: str, id: str, gpu: str, rows: int, length: int, tmp_path: Path
) -> None:
    """With all checkers, and in a random schedule: what barriers say must be enough in every order."""
    function = BY_NAME[name]
    task = task_of(function, {**SIZES, "cols": 1023 if id == "cluster-ahead" else 1024})
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    path = tmp_path / "shared.cu"
    path.write_text(structures[id].write(task_op_line(task)).replace("WALK = 4 | 16", "WALK = 16"))
    op = tilewright.load(str(path))
    check(op, function, task, sizes_at(task, rows, length))
    tensors = draw(task, sizes_at(task, rows, length), 1)
    given = [tensors[one.name] for one in task.tensors]
    assert op.emulate(*given, gpu=gpu, schedules=2).findings == ()


@pytest.mark.parametrize(("name", "rows", "length"), [("softmax", 40, 37), ("layernorm", 3, 4100)])
def test_clusters_that_take_rows_in_turn_are_right_and_clean(name: str, rows: int, length: int, tmp_path: Path) -> None:
    """Many rows for each of six clusters, and fewer rows than clusters, which all find out that none is left."""
    function = BY_NAME[name]
    task = task_of(function, {**SIZES, "cols": 200000})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == CLUSTER)
    text = step.write(task_op_line(task))
    assert "rows_taken" in text
    path = tmp_path / "taken.cu"
    path.write_text(text.replace("min(rows, max(device.sms / BLOCKS, 1))", "6"))
    op = tilewright.load(str(path))
    check(op, function, task, sizes_at(task, rows, length))
    tensors = draw(task, sizes_at(task, rows, length), 1)
    given = [tensors[one.name] for one in task.tensors]
    assert op.emulate(*given, gpu="H200", schedules=3).findings == ()


@pytest.mark.parametrize("id", ["cluster-stages", "grid-stages"])
@pytest.mark.parametrize(("name", "sizes"), STAGED)
def test_rows_that_come_in_stages_are_right_and_clean(
    name: str, sizes: tuple[tuple[int, int], ...], id: str, tmp_path: Path
) -> None:
    """More rows than teams, and stages than the ring has; stages and rounds that are not full; blocks without any; rows
    that are no whole number of vectors, or too long, and so not held."""
    function = BY_NAME[name]
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    path = tmp_path / "staged.cu"
    text = structures[id].write(task_op_line(task)).replace("WALK = 8 | 16 | 4", "WALK = 16")
    if id == "grid-stages":  # two teams of few blocks, and rings of ten small stages, which are gone through again
        text = text.replace("TEAMS = 4 |", "TEAMS =").replace("device.sms / TEAMS", "8")
        text = text.replace("STAGE = 512 ", "STAGE = 256 ").replace("WRITING = 512 ", "WRITING = 128 ")
        text = re.sub(r"STAGES = \(device.smem_block - \d+\)", "STAGES = 45000", text)
    path.write_text(text)
    op = tilewright.load(str(path))
    for rows, length in sizes:
        check(op, function, task, sizes_at(task, rows, length))
        tensors = draw(task, sizes_at(task, rows, length), 1)
        given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
        assert op.emulate(*given, gpu="H200", schedules=2).findings == (), (rows, length)


@pytest.mark.parametrize("id", ["cluster-stages", "grid-stages"])
def test_rows_in_stages_that_overflow_are_as_in_other_ways(id: str, tmp_path: Path) -> None:
    """What is infinite or no number stays so when means and variances of warps and blocks are put together."""
    function = Function("moments", "return x - x.mean(-1, keepdim=True), x.mean(-1), x.var(-1)")
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    x = torch.randn(8, 8200, generator=torch.Generator().manual_seed(1))
    x[0, 0], x[1, 8199], x[2, 5] = math.inf, -math.inf, math.nan
    x[3, 0], x[3, 8199] = math.inf, -math.inf
    x[4] *= 3e36
    x[5] *= 1e20
    x[6] += 1e6
    made, plain = (load_structure(structures[one], task, tmp_path)(x) for one in (id, "stream"))
    for found, wanted in zip(made, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=0.1, equal_nan=True)
    assert made[1][0] == math.inf
    assert made[2][4:6].tolist() == [math.inf] * 2
    assert made[2][:4].isnan().all()


@pytest.mark.parametrize("id", ["cluster-stages", "grid-stages"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (20, 52), (128, 64)])
def test_channels_of_rows_in_stages_are_right_and_clean(height: int, width: int, id: str, tmp_path: Path) -> None:
    """Where all threads have a channel in common its weight comes from a lane, and else from memory."""
    function = BY_NAME["group_norm"]
    task = task_of(function, {**SIZES, "height": height, "width": width})
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures[id], task, tmp_path)
    sizes = {one.name: one.size for one in task.dimensions}
    check(op, function, task, sizes)
    tensors = draw(task, sizes, 1)
    given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
    assert op.emulate(*given, gpu="H200", schedules=2).findings == ()


@pytest.mark.parametrize("sums", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("moments", [False, True])
def test_rows_in_stages_have_room_for_all_their_sums(moments: bool, sums: int, tmp_path: Path) -> None:
    """What is kept of each row beside the ring grows with the sums. Two multiprocessors are fewer than teams."""
    variance = "x.var(-1, keepdim=True)"
    others = ("amax(-1, keepdim=True)", "square().sum(-1, keepdim=True)", "sum(-1, keepdim=True)")
    others += ("amin(-1, keepdim=True)", "abs().amax(-1, keepdim=True)")
    terms = [*([variance] if moments else []), *(f"x.{one}" for one in others[:sums])]
    function = Function("many_sums", f"return x + {' + '.join(terms)}")
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["grid-stages"], task, tmp_path)
    x = draw(task, sizes_at(task, 3, 6148), 1)["x"]
    call = op.emulate(x, gpu=replace(PROFILES["H200"], sms=2))
    assert call.findings == ()
    wanted = function.callable(x.double()).float()
    torch.testing.assert_close(call.results, wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", ["middle_sum", "middle_mean", "middle_places", "middle_least"])
def test_windows_of_columns_are_right_and_clean(name: str, tmp_path: Path) -> None:
    """Windows of two tiles, the last of which is not full; two shares; columns that are no whole number of windows, and
    elements that are no whole number of vectors; fewer columns than a window has."""
    function = BY_NAME[name]
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["column-windows"], task, tmp_path)
    for rows, cols in ((72, 133), (4132, 3), (68, 29), (37, 35), (5, 4), (1, 1), (33, 64)):
        check(op, function, task, sizes_at(task, rows, cols))
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        for gpu in ("A100", "H200"):
            assert op.emulate(*(tensors[one.name] for one in task.tensors), gpu=gpu).findings == (), (gpu, rows, cols)


def test_the_first_of_equal_places_is_found_in_any_window(tmp_path: Path) -> None:
    function = BY_NAME["middle_places"]
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["column-windows"], task, tmp_path)
    x = torch.randint(0, 9, (2, 72, 133), generator=torch.Generator().manual_seed(1)).float()
    x[0, :, 7] = float("-inf")
    x[1, 50:, 9] = float("nan")
    places, least = op(x)
    assert torch.equal(places, x.argmax(1))
    assert torch.equal(least.nan_to_num(77), x.amin(1).nan_to_num(77))


@pytest.mark.parametrize(
    ("height", "width", "gpu"), [(64, 60, "H200"), (64, 60, "A100"), (61, 61, "H200"), (61, 61, "RTX 4090")]
)
def test_rows_of_which_a_part_is_kept_are_right_and_clean(height: int, width: int, gpu: str, tmp_path: Path) -> None:
    """On a chip of three multiprocessors with room for little, so that a part of the rows stays nowhere. Means differ:
    squares are about the mean of what is held at first, and a part that is not has another."""
    function = BY_NAME["batch_norm_train"]
    task = task_of(function, {**SIZES, "batch": 12, "channels": 3, "height": height, "width": width})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == "kept")
    text = step.write(task_op_line(task)).replace("device.sms", "3").replace("device.smem_block", "20000")
    path = tmp_path / "kept.cu"
    path.write_text(text.replace("288 / max", "32 / max"))
    op = tilewright.load(str(path))
    tensors = draw(task, dict(task.sizes), 1)
    tensors["x"] += 50 * torch.randn(12, 3, 1, 1, generator=torch.Generator().manual_seed(2))
    expected = function.callable(*(one.double() for one in tensors.values()))
    assert torch.allclose(op(*tensors.values()).double(), expected, rtol=2e-6, atol=2e-6)
    assert op.emulate(*tensors.values(), gpu=gpu, schedules=2).findings == ()


def test_rows_of_which_a_part_is_kept_are_as_in_pytorch_where_they_do_not_vary_or_overflow(tmp_path: Path) -> None:
    """A variance of rounding errors is never below zero; what is infinite or no number stays so."""
    function = BY_NAME["batch_norm_train"]
    task = task_of(function, {**SIZES, "batch": 12, "channels": 5, "height": 64, "width": 60})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == "kept")
    text = step.write(task_op_line(task)).replace("device.sms", "3").replace("device.smem_block", "20000")
    path = tmp_path / "kept.cu"
    path.write_text(text.replace("288 / max", "32 / max"))
    tensors = draw(task, dict(task.sizes), 1)
    x = tensors["x"]
    x[:, 0], x[5, 2, 3, 4], x[0, 3, 0, 0] = 123456.78, math.inf, math.nan
    x[:, 4] *= 1e25
    made, wanted = tilewright.load(str(path))(*tensors.values()), function.callable(*tensors.values())
    assert (made[:, 0] - wanted[:, 0]).abs().max() < 5  # of a difference of rounding errors, by 1 / sqrt(eps)
    assert torch.allclose(made[:, 1], wanted[:, 1], rtol=2e-6, atol=2e-6)
    assert made[:, 2:4].isnan().all()
    assert torch.equal(made[:, 4], wanted[:, 4])


def test_vectors_that_lie_in_two_channels_are_right(tmp_path: Path) -> None:
    """Rows of whole vectors, channels of 35 elements: a vector's elements have a weight of their own each."""
    function = BY_NAME["group_norm"]
    task = task_of(function, {**SIZES, "channels": 24, "height": 5, "width": 7})
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    check(load_structure(structures["lanes"], task, tmp_path), function, task, dict(task.sizes))


@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_infinities_in_some_pieces_of_a_row_are_as_in_pytorch(name: str, tmp_path: Path) -> None:
    """A piece of -inf alone has no greatest element to be about; a row of it has no answer."""
    function = BY_NAME[name]
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["passes"], task, tmp_path)
    x = torch.randn(4, 20000, generator=torch.Generator().manual_seed(1))
    x[0, :9000] = float("-inf")
    x[1] = float("-inf")
    x[2, 12345] = float("nan")
    x[3, 77] = float("inf")
    got, want = op(x), function.callable(x)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-9, equal_nan=True)


def test_pieces_whose_means_differ_are_put_together(tmp_path: Path) -> None:
    """Squares are of differences from the mean of the row, not from those of its pieces."""
    function = BY_NAME["layernorm"]
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["passes"], task, tmp_path)
    x = torch.linspace(-3, 9, 20000).repeat(2, 1) + torch.randn(2, 20000, generator=torch.Generator().manual_seed(1))
    weight, bias = torch.linspace(0.5, 2, 20000), torch.linspace(-1, 1, 20000)
    want = function.callable(x.double(), weight.double(), bias.double(), 1e-5)
    assert torch.allclose(op(x, weight, bias, 1e-5).double(), want, rtol=1e-5, atol=1e-5)


def test_sums_of_logarithms_are_right_at_both_ends_of_what_is_quick(tmp_path: Path) -> None:
    """The quick logarithm is not near enough to 0 around 1, and what f32 has no logarithm for stays so."""
    function = Function("logarithms", "return x.log().sum(-1)")
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    given = [0.0, -1.0, math.inf, math.nan, 1e-42, 1.1754e-38, 1.1756e-38, 0.5, 0.69999, 0.70001, 0.999999, 1.0]
    given += [1.000001, 1.449999, 1.450001, 1.9999999, 2.0, 3e38]
    x = torch.tensor(given)[:, None]
    got, want = load_structure(structures["stream"], task, tmp_path)(x), x[:, 0].double().log()
    assert torch.allclose(got.double(), want, rtol=4e-7, atol=0, equal_nan=True)


def test_sums_of_divergences_are_right_near_and_far_and_for_odd_numbers(tmp_path: Path) -> None:
    """One quick difference stands for two logarithms: near ones to the last places, and odd ones as f32 has."""
    function = Function(
        "divergence", "return (torch.xlogy(t, t) - t * p.log()).sum(-1)", "p: f32[rows, cols]; t: f32[rows, cols]"
    )
    task = task_of(function)
    structures = {one.id: one for one in row_schedules(program_of(function, task)).every}
    op = load_structure(structures["stream"], task, tmp_path)
    assert "summed_divergence_of(" in (tmp_path / f"{task.name}.cu").read_text()
    plain = [0.01, 0.5, 0.59, 0.61, 0.999, 1.0, 1.0000001, 1.66, 1.68, 7.0, 1e-30, 1e-38, 1e-42, 1e19, 2e19, 1e36]
    p, t = (one[:, None].contiguous() for one in torch.cartesian_prod(*[torch.tensor(plain)] * 2).unbind(1))
    log_t, log_p = t.double().log(), p.double().log()
    wrong = (op(p, t)[:, None] - t * (log_t - log_p)).abs()
    near = ((log_t - log_p).abs() < 0.5) & (t < 1e19) & (t > 1e-37)  # to the last places of the difference
    of_what = torch.where(near, (log_t - log_p).abs(), log_t.abs() + log_p.abs())
    assert (wrong <= 4e-7 * t * of_what + 1e-44).all()
    odd = torch.tensor([0.0, -0.0, -1.0, -1.1, 1.0, 1.5e38, 3e38, math.inf, -math.inf, math.nan])
    p, t = (one[:, None].contiguous() for one in torch.cartesian_prod(odd, odd).unbind(1))
    assert torch.allclose(op(p, t), function.callable(p, t), rtol=1e-6, atol=0, equal_nan=True)


def test_elu_is_right_in_its_last_places(tmp_path: Path) -> None:
    """Its exponential is a series of the playbook's own: around zero, where 2 is halved, and where nothing is left."""
    function = Function("exponential_unit", "return F.elu(x)")
    task = task_of(function)
    op = load_structure(row_schedules(program_of(function, task)).every[0], task, tmp_path)
    x = torch.cat((torch.linspace(-20, 1, 3001), torch.linspace(-0.4, 0.01, 1991), -torch.logspace(-38, 3, 1000)))
    want = F.elu(x.double())
    assert ((op(x[None])[0] - want).abs() <= 1.5 * 2**-23 * want.abs() + 1e-44).all()
    odd = op(torch.tensor([[math.inf, -math.inf, math.nan, 0.0, -0.0, -1e38, 1e-42, -1e-42]]))[0]
    assert torch.allclose(odd, torch.tensor([math.inf, -1, math.nan, 0, 0, -1, 1e-42, -1e-42]), 0, 1e-45, True)
    assert odd[4].signbit()


def test_celu_of_a_negative_alpha_overflows_as_in_pytorch(tmp_path: Path) -> None:
    """Its exponential is of what is above zero there, and no number only where PyTorch's is none."""
    function = Function("turned", "return F.celu(x, -1.0)")
    task = task_of(function)
    op = load_structure(row_schedules(program_of(function, task)).every[0], task, tmp_path)
    x = torch.tensor([[-1.0, -80.0, -88.5, -88.7, -88.73, -90.0, -104.0, -math.inf, 2.0, math.nan, 0.0, -1e-9]])
    assert torch.allclose(op(x), F.celu(x, -1.0), rtol=1e-6, atol=0, equal_nan=True)


def test_softplus_is_right_in_its_last_places(tmp_path: Path) -> None:
    """Its logarithm is a series of the playbook's own: where it is small, around zero, and beyond the threshold."""
    function = Function("softened", "return F.softplus(x, 2.0, 15.0)")
    task = task_of(function)
    op = load_structure(row_schedules(program_of(function, task)).every[0], task, tmp_path)
    x = torch.cat(
        (torch.linspace(-40, 10, 3001), torch.linspace(-0.01, 0.01, 995), torch.tensor([7.5, 7.6, 90.0, -90.0]))
    )
    want = function.callable(x.double())
    assert ((op(x[None])[0] - want).abs() <= 3 * 2**-23 * want + 1e-38).all()
    odd = op(torch.tensor([[math.inf, -math.inf, math.nan, 0.0]]))[0]
    assert odd[:2].tolist() == [math.inf, 0.0]
    assert odd[2].isnan()


def test_quotients_by_what_a_row_comes_to_are_those_of_a_division(tmp_path: Path) -> None:
    """Bit for bit: half of the greatest is a tie between two whole numbers. Rows of zeros, of infinities, and of
    numbers whose inverse is none; quotients themselves in a result that keeps every difference."""
    scale = "scale = x.float().abs().amax(-1, keepdim=True) / 127"
    whole = "torch.round(quotient).clamp(-127, 127).to(torch.int8)"
    body = f"{scale}\nquotient = x.float() / scale\nreturn {whole}, (quotient * 128).to(torch.int16), scale"
    function = Function("quantised", body, "x: bf16[rows, cols]")
    task = task_of(function)
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn((12, 1000), generator=generator)
        * 2.0 ** torch.tensor([0, 3, -90, 90, -110, -128, -131, 0, 0, 0, 0, 0])[:, None]
    )
    x[:, ::7] = x.abs().amax(-1, keepdim=True) / 2
    x[8], x[9, 3], x[10, 4] = 0.0, math.inf, math.nan
    x = x.to(torch.bfloat16)
    wanted = function.callable(x)
    usual = x[:, 0].isfinite() & x.isfinite().all(-1) & (x != 0).any(-1)  # what NaN is as a whole number is open
    for id in ("lanes", "block"):
        step = next(one for one in row_schedules(program_of(function, task)).every if one.id == id)
        op = load_structure(step, task, tmp_path)
        got = op(x)
        assert "quotient_of(" in (tmp_path / "quantised.cu").read_text()
        for one, want in zip(got, wanted, strict=True):
            assert torch.equal(one[usual], want[usual]), id
        assert torch.equal(got[2].isnan(), wanted[2].isnan())


@pytest.mark.parametrize(("id", "cols"), [("block", 65536), ("cluster-ahead", 131072)])
def test_long_rows_of_small_elements_stay_packed_in_registers(id: str, cols: int, tmp_path: Path) -> None:
    """Unpacked, they do not fit, and are written to memory and read again in every sweep."""
    function = BY_NAME["layernorm_gelu"]
    task = task_of(function, {**SIZES, "rows": 128, "cols": cols})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == id)
    evaluation = evaluate(parse(step.write(task_op_line(task))), task.arguments(task.sizes), PROFILES["H200"])
    request = evaluation.build_request()
    assert request is not None
    built = build(request, isolated=False)
    assert isinstance(built, Build)
    assert [one.resources.spill_store_bytes for one in built.kernels] == [0] * len(built.kernels)
    if id == "block":
        check(load_structure(step, task, tmp_path), function, task, sizes_at(task, 2, cols))


@pytest.mark.parametrize("gpu", ["A100", "L4", "H200"])
@pytest.mark.parametrize(("name", "id"), [("row_sum", "lanes"), ("row_sum", "block"), ("mean_loss", "split")])
def test_what_is_read_once_of_a_few_megabytes_leaves_the_cache_first(
    name: str, id: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole vectors, and rows that have none."""
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    function = BY_NAME[name]
    for rows, past in ((1024, True), (1 << 20, False), (16, False)):
        task = task_of(function, {**SIZES, "rows": rows})
        step = next(one for one in row_schedules(program_of(function, task)).every if one.id == id)
        assert ("load_past(" in step.write(task_op_line(task))) == past
    task = task_of(function, {**SIZES, "rows": 1024})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == id)
    op = load_structure(step, task, tmp_path)
    for rows, cols in ((3, 1024), (5, 37)):
        check(op, function, task, sizes_at(task, rows, cols))
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        assert op.emulate(*tensors.values(), gpu=gpu).findings == ()


def test_a_quotient_is_exact_before_it_is_rounded(tmp_path: Path) -> None:
    """Of every bf16 digit, elements that lie on the edge of a rounding: a product with the inverse falls beside it."""
    body = "s = x.float().abs().amax(-1, keepdim=True) / 7\nreturn (torch.round(x / s) * s).bfloat16(), x / s > 3.49999"
    function = Function("quantised", body, "x: bf16[rows, cols]")
    task = task_of(function)
    greatest = torch.arange(128.0, 256.0)
    x = torch.stack([greatest, greatest / 2, -greatest / 2, greatest / 7], 1).bfloat16()
    for step in row_schedules(program_of(function, task)).every[:2]:
        got = load_structure(step, task, tmp_path)(x)
        for one, want in zip(got, function.callable(x), strict=True):
            assert torch.equal(one, want), step.id


@pytest.mark.parametrize(("places", "far"), [(0, False), (63, False), (64, True), (-1, True)])
def test_shifts_by_all_of_a_number_or_more_are_no_plain_shifts(places: int, far: bool, tmp_path: Path) -> None:
    """An instruction's own shift by 64 or more is not defined in C++; PyTorch's leaves nothing but the sign."""
    function = Function(f"shifted_{places % 100}", f"return x << {places}, x >> {places}", "x: i64[rows, cols]")
    task = task_of(function)
    step = row_schedules(program_of(function, task)).every[0]
    text = step.write(task_op_line(task))
    assert ("far_left_shift" in text, "far_right_shift" in text) == (far, far)
    check(load_structure(step, task, tmp_path), function, task, sizes_at(task, 3, 5))
