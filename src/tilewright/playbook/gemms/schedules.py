"""Which schedules are written for GEMMs and convolutions, in the order in which they are tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tilewright.kernel_file import KernelFileError, parse
from tilewright.playbook.catalogue import Schedule, row_schedules
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms import (
    convolution_direct,
    convolution_hopper,
    convolution_points,
    convolution_streamed,
    convolution_strips,
    convolution_tensor_cores,
)
from tilewright.playbook.gemms.chains import best_schedules, chain_text, with_channels, with_weights
from tilewright.playbook.gemms.convolution_direct import direct_convolution
from tilewright.playbook.gemms.convolution_hopper import hopper_convolution
from tilewright.playbook.gemms.convolution_points import point_convolution
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.convolution_streamed import streamed_convolution
from tilewright.playbook.gemms.convolution_strips import strip_convolution
from tilewright.playbook.gemms.convolution_tensor_cores import tensor_core_convolution
from tilewright.playbook.gemms.convolution_tensor_cores_rows import has_long_rows, long_row_convolution
from tilewright.playbook.gemms.graph import CONVOLUTION
from tilewright.playbook.gemms.graph import PRODUCTS as MATRIX_PRODUCTS
from tilewright.playbook.gemms.hopper import can_fuse, can_write, hopper_product
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.program import Gemm
from tilewright.playbook.gemms.reading import Chain, RowsStage, read
from tilewright.playbook.gemms.tensor_cores import tensor_core_product
from tilewright.playbook.gemms.tiles import is_vector_product, tiled_product, vector_product
from tilewright.records import DType
from tilewright.tasks import task_op_line

_TURING = "sm_75"  # without asynchronous copies
_HOPPER = "sm_90a"

_MANY_CHANNELS = 32
_ON_HOPPER = "convolution-hopper"
_OVER_CHANNELS = "convolution-hopper-channels"
_MUCH_WORK = 1 << 32  # multiplications
_LITTLE_WORK = 200  # multiplications for every element of x and y

WriteConvolution = Callable[[Convolution, str, Choices], Fragment]
Writer = Callable[[Convolution], WriteConvolution]  # what writes a convolution


@dataclass(frozen=True)
class ConvolutionSchedule:
    """A way to write convolutions: each by the first of its structures that can."""

    id: str
    summary: str
    writer: Writer
    resort: bool = False  # as a structure has it

    def write(self, convolution: Convolution, op_line: str, choices: Choices) -> Fragment:
        return self.writer(convolution)(convolution, op_line, choices)


def convolution_schedules(convolutions: tuple[Convolution, ...], arch: str) -> tuple[ConvolutionSchedule, ...]:
    """The ways that take every convolution of a chain on a GPU, the most promising first."""
    found: list[ConvolutionSchedule] = []
    if arch == _HOPPER:
        able = sorted(
            (one for one in convolutions if convolution_hopper.can_write(one)), key=lambda one: -one.multiplications
        )
        rest = [one for one in convolutions if one not in able]
        least = 1 if all(map(_is_written, convolutions)) else len(able)
        found += [
            _hopper_schedule(tuple(able[:count]), len(able))
            for count in range(len(able), 0, -1)
            if count >= least and all(map(_is_written, rest))
        ]
    if not all(map(_is_written, convolutions)):
        return tuple(found)
    if arch != _TURING and any(_written(one) is tensor_core_convolution for one in convolutions):
        found += [LONG_ROWS] if any(map(has_long_rows, convolutions)) else []
        found.append(TENSOR_CORES)
    if any(convolution_direct.can_write(one) for one in convolutions):
        found.append(DIRECT)
    if all(_is_large(one) for one in convolutions):
        first = [one for one in found if one.id.startswith(_ON_HOPPER)]
        others = found[len(first) :]
        if first:
            tried = first + others[: 1 if all(map(_moves_much, convolutions)) else 0]
        else:
            tried = [one for one in others if one is not DIRECT]
        found = [one if one in tried else replace(one, resort=True) for one in found]
    if arch == _HOPPER and any(map(convolution_strips.can_write, convolutions)):
        found.insert(0, STRIPS)
    if arch != _TURING and any(map(_are_points, convolutions)):
        found.insert(0, _points_schedule(found[0].writer if found else _written))
    if arch == _HOPPER and any(map(convolution_streamed.pays, convolutions)):
        found.insert(0, _streamed_schedule(found[0].writer if found else _written))
    return tuple(found)


def channel_schedules(convolutions: tuple[Convolution, ...]) -> tuple[ConvolutionSchedule, ...]:
    """The ways that do work over channels before anything is stored."""
    able = tuple(one for one in convolutions if convolution_hopper.can_write(one))
    summary = (
        "TMA and wgmma: a copy of x with channels last, taps as shifted rows of it; what follows over channels is done "
        "on the sums in registers"
    )
    return (ConvolutionSchedule(_OVER_CHANNELS, summary, _on_hopper(able)),)


def pays_over_channels(convolution: Convolution) -> bool:
    """Whether work over channels is quicker before anything is stored: little is left to store, or rows of the result
    begin anywhere, which a pass over them is slow on. Otherwise that runs at memory's speed, and the registers do not.
    """
    assert convolution.across is not None
    reduced = not convolution.across.outputs[0].varies
    return reduced or math.prod(one.results.size for one in convolution.windows) % 4 != 0


def _are_points(convolution: Convolution) -> bool:
    return convolution_points.can_write(convolution) and convolution_points.is_bound_by_memory(convolution)


def _points_schedule(otherwise: Writer) -> ConvolutionSchedule:
    """For the convolutions of single positions; the others as the way that would have been first."""
    summary = "a product on tensor cores: weights that stay in shared memory times positions that stream past them"
    return ConvolutionSchedule("convolution-points", summary, _first(point_convolution, _are_points, otherwise))


def _streamed_schedule(otherwise: Writer) -> ConvolutionSchedule:
    """For the convolutions that memory bounds; the others as the way that would have been first."""
    summary = "TMA and wgmma: x as it lies, positions in registers, times weights that stay in shared memory"
    return ConvolutionSchedule(
        "convolution-streamed", summary, _first(streamed_convolution, convolution_streamed.pays, otherwise)
    )


def _is_large(convolution: Convolution) -> bool:
    """Whether only the quickest tensor cores will do: the ways without them lose by factors."""
    wide = min(convolution.channels.size, convolution.filters.size) >= _MANY_CHANNELS
    return wide and convolution.multiplications >= _MUCH_WORK


def _moves_much(convolution: Convolution) -> bool:
    """Whether a copy of x in another form takes long beside the arithmetic."""
    read = convolution.channels.size * math.prod(one.length.size for one in convolution.windows)
    made = convolution.filters.size * math.prod(one.results.size for one in convolution.windows)
    moved = read + made
    return convolution.multiplications <= _LITTLE_WORK * moved * convolution.batch.size * convolution.groups


def _on_tensor_cores(convolution: Convolution) -> bool:
    """Not where every result is made from one channel."""
    return convolution_tensor_cores.can_write(convolution) and not convolution.is_depthwise


def _is_written(convolution: Convolution) -> bool:
    return _on_tensor_cores(convolution) or convolution_direct.can_write(convolution)


def _written(convolution: Convolution) -> WriteConvolution:
    return tensor_core_convolution if _on_tensor_cores(convolution) else direct_convolution


def _first(write: WriteConvolution, takes: Callable[[Convolution], bool], otherwise: Writer) -> Writer:
    """By `write` what it takes."""
    return lambda one: write if takes(one) else otherwise(one)


def _on_hopper(chosen: tuple[Convolution, ...]) -> Writer:
    return _first(hopper_convolution, lambda one: one in chosen, _written)


def _hopper_schedule(chosen: tuple[Convolution, ...], able: int) -> ConvolutionSchedule:
    """For these convolutions; a file has no room for many, and then the largest are worth it most."""
    summary = "TMA and wgmma: a copy of x with channels last, taps as shifted rows of it"
    if len(chosen) == able:
        return ConvolutionSchedule(_ON_HOPPER, summary, _on_hopper(chosen))
    few = f"{summary}; of the {len(chosen)} largest, the rest by mma.sync"
    return ConvolutionSchedule(f"{_ON_HOPPER}-largest-{len(chosen)}", few, _on_hopper(chosen))


LONG_ROWS = ConvolutionSchedule(
    "convolution-rows",
    "a product on tensor cores: rows of x in shared memory, the taps along them as shifts",
    _first(long_row_convolution, lambda one: _written(one) is tensor_core_convolution and has_long_rows(one), _written),
)
TENSOR_CORES = ConvolutionSchedule(
    "convolution-tensor-cores", "a product on tensor cores that reads x as it lies", _written
)
STRIPS = ConvolutionSchedule(
    "convolution-strips",
    "strips of planes copied to shared memory and results back, sums in registers",
    _first(strip_convolution, convolution_strips.can_write, _written),
)
DIRECT = ConvolutionSchedule(
    "convolution-direct",
    "a thread makes a patch of results in registers",
    _first(direct_convolution, convolution_direct.can_write, _written),
)


# Which structures are written for a chain of products and convolutions, in the order in which they are tried.


_FUSED = "product-hopper-fused"
_FEW_TILES = 132  # of 128 x 128 sums
_LONG_K = 2048
_FEW_ROWS = 256  # of the first operand: each of the second is multiplied once or twice
_MOST_PARTS = 24 << 30  # bytes of parts that are made first: a plan's scratch tensors have 32 GiB in all
_MUCH_WORK_OF_GEMMS = 1 << 34  # multiplications: there wgmma has always won
_LITTLE_REUSE = 800  # products for each number of the operands: splitting them first takes longer than it saves
_NARROW = 8  # times as many rows of the first operand as the second has columns
_SEVERAL_STEPS = 256  # of k: fewer, and a tile is stored as soon as it is begun


@dataclass(frozen=True)
class GemmSchedule:
    """A way to write every product of a chain, or every product and every convolution."""

    id: str
    summary: str
    write: Callable[..., Fragment]
    resort: bool = False  # as a structure has it


def _matches(traced: TracedTask) -> Schedules | None:
    """What is written for a task with products or convolutions in it."""
    if not traced.targets & TARGETS:
        return None
    chain = read(traced)
    if not chain.sums:
        return _only_rows(chain)
    products = tuple(one for one in chain.sums if isinstance(one, Gemm))
    convolutions = tuple(one for one in chain.sums if isinstance(one, Convolution))
    op_line = task_op_line(chain.task)
    arch = traced.task.profile.arch
    found = [
        (chain, one)
        for one in _sums_schedules(
            gemm_schedules(list(products), arch), convolution_schedules(convolutions, arch), chain
        )
    ]
    joined = with_channels(chain, op_line) if arch == _HOPPER else None
    if joined is not None:
        own = tuple(one for one in joined.sums if isinstance(one, Convolution))
        schedules = _sums_schedules(gemm_schedules(list(products), arch), channel_schedules(own), joined)
        at = 0 if all(pays_over_channels(one) for one in own if one.across is not None) else 1
        found[at:at] = [(joined, one) for one in schedules]
    weighed = with_weights(chain, op_line) if arch == _HOPPER else None
    if weighed is not None and found[0][1].id == _FUSED:
        summary = f"{found[0][1].summary}, and between them its softmax, by both"
        found.insert(0, (weighed, replace(found[0][1], id=f"{_FUSED}-softmax", summary=summary)))
    every = tuple(_structure(each, one, best_schedules(each, one.write, op_line)) for each, one in found)
    if convolutions and len(chain.stages) > 1:
        every = _with_room(every, op_line)
    return Schedules(every)


def _with_room(every: tuple[Structure, ...], op_line: str) -> tuple[Structure, ...]:
    """The structures whose files are within the limits of one; of those with fewer convolutions on Hopper's units
    only the first."""
    kept: dict[str, Structure] = {}
    for one in every:
        kind = one.id.partition("-largest")[0].partition("-then-")[0]
        try:
            if kind not in kept:
                parse(one.write(op_line))
                kept[kind] = one
        except KernelFileError:
            continue
    return tuple(kept.values())


def _sums_schedule(product: GemmSchedule | None, convolution: ConvolutionSchedule | None) -> GemmSchedule:
    both = [one for one in (convolution, product) if one is not None]

    def write(stage: Gemm | Convolution, op_line: str, choices: Choices) -> Fragment:
        if isinstance(stage, Convolution):
            assert convolution is not None
            return convolution.write(stage, op_line, choices)
        assert product is not None
        return product.write(stage, op_line, choices)

    id, summary = "-and-".join(one.id for one in both), "; ".join(one.summary for one in both)
    return GemmSchedule(id, summary, write, any(one.resort for one in both))


def _sums_schedules(
    products: tuple[GemmSchedule, ...], convolutions: tuple[ConvolutionSchedule, ...], chain: Chain
) -> list[GemmSchedule]:
    """Every way for what the chain has most of, beside the best for the rest."""
    has_products = any(isinstance(one, Gemm) for one in chain.sums)
    has_convolutions = any(isinstance(one, Convolution) for one in chain.sums)
    if not has_convolutions:
        return [_sums_schedule(one, None) for one in products]
    best = products[0] if has_products else None
    return [_sums_schedule(best, one) for one in convolutions]


def _only_rows(chain: Chain) -> Schedules:
    """Where algebra has left no product."""
    first, *more = chain.rest or (None,)
    if more or not isinstance(first, RowsStage):
        raise NoMatch
    found = row_schedules(first.program)
    noted = [tuple(one.noted(chain.notes) for one in some) for some in (found.structures, found.others)]
    return Schedules(*noted)


def gemm_schedules(products: list[Gemm], arch: str) -> tuple[GemmSchedule, ...]:
    """The ways that take every product of a chain on a GPU, the most promising first."""
    if all(is_vector_product(one) for one in products):
        summary = "a matrix times a vector: its bytes read once"
        return (GemmSchedule("product-vector", summary, partial(_either, vector_product)),)
    cut = any(_is_long(one) for one in products)
    hopper = _hopper_schedules(products, cut) if arch == _HOPPER else []
    found = [*hopper]
    if arch != _TURING and all(one.has_one_element_type or is_vector_product(one) for one in products):
        strict = any(one.is_strict for one in products)
        summary = f"tensor cores by mma.sync{', f32 as two TF32 parts' if strict else ''}, tiles copied asynchronously"
        found += _with_pieces("product-tensor-cores", summary, tensor_core_product, cut)
    found += _with_pieces("product-tiles", "eight by eight sums of a thread in registers", tiled_product, cut)
    if hopper and sum(one.multiplications for one in products) >= _MUCH_WORK_OF_GEMMS:
        found[len(hopper) :] = [replace(one, resort=True) for one in found[len(hopper) :]]
    return tuple(found)


def _hopper_schedules(products: list[Gemm], cut: bool) -> list[GemmSchedule]:
    """The ways by TMA and wgmma."""
    if not all(is_vector_product(one) or can_write(one) for one in products):
        return []
    if any(one.element is not DType.F32 for one in products):
        found = _with_pieces("product-hopper", "TMA and wgmma: a producer, two consumers", _hopper, cut)
    else:
        summary = "TMA and wgmma, f32 as two f16 parts that are made first"
        found = _with_pieces("product-hopper-parts", summary, _hopper, cut)
        # Elsewhere operands are small beside the work on them, and splitting them first is quicker.
        few = cut or all(is_vector_product(one) or _is_little_work(one) for one in products)
        much = sum(_parts_bytes(one) for one in products) > _MOST_PARTS
        if not all(is_vector_product(one) or can_fuse(one, pieces=cut) for one in products):
            return found
        if few and not cut and all(is_vector_product(one) or _has_large_first(one) for one in products):
            summary = "TMA and wgmma, f32 as two f16 parts: the first operand's are made where they are multiplied"
            schedule = _with_pieces("product-hopper-fused-a", summary, partial(_hopper, fused=True, ready_b=True), cut)[
                0
            ]
            found.insert(0, schedule)
        elif few or much:
            summary = "TMA and wgmma, f32 as two f16 parts that are made where they are multiplied"
            found.insert(0, _with_pieces(_FUSED, summary, partial(_hopper, fused=True), cut)[0])
    return found


def _hopper(
    product: Gemm,
    op_line: str,
    choices: Choices,
    pieces: bool = False,
    fused: bool = False,
    ready_b: bool = False,
) -> Fragment:
    """Whose few constants are left to autotuning in chains too."""
    return hopper_product(product, op_line, pieces, fused, ready_b)


def _with_pieces(id: str, summary: str, write: Callable[..., Fragment], cut: bool) -> list[GemmSchedule]:
    """A way as it is; and first, where k is long and results are few, with k cut into pieces."""
    found = [GemmSchedule(id, summary, partial(_either, write))]
    if cut:
        pieces = partial(_either, partial(write, pieces=True))
        found.insert(0, GemmSchedule(f"{id}-pieces", f"{summary}; k cut into pieces that a second kernel adds", pieces))
    return found


def _either(write: Callable[..., Fragment], product: Gemm, op_line: str, choices: Choices) -> Fragment:
    """A product as the way writes it; vectors as vectors."""
    chosen = vector_product if is_vector_product(product) else write
    return chosen(product, op_line, choices=choices)


def _is_long(product: Gemm) -> bool:
    """Whether tiles of the result are too few to fill a GPU, and k long enough to be cut."""
    tiles = -(-product.m.size // 128) * -(-product.n.size // 128) * product.batch.size
    return tiles < _FEW_TILES and product.k.size >= _LONG_K


def _parts_bytes(product: Gemm) -> int:
    """Of both operands, two f16 parts of every number."""
    return 4 * product.batch.size * product.k.size * (product.m.size + product.n.size)


def _is_little_work(product: Gemm) -> bool:
    """Whether operands are large beside the work on them, and tiles are more than their stores."""
    m, n = product.m.size, product.n.size
    return m <= _FEW_ROWS or (m * n <= _LITTLE_REUSE * (m + n) and product.k.size >= _SEVERAL_STEPS)


def _has_large_first(product: Gemm) -> bool:
    """Whether splitting the first operand first takes long enough to be saved, and the second is soon split. Of square
    matrices it is not: 4096 by 4096 by 4096 took 686 us on an H200, and 618 with both split first."""
    m, n, k = product.m.size, product.n.size, product.k.size
    return product.kept is None and k >= _SEVERAL_STEPS and m >= _NARROW * n


def _structure(chain: Chain, schedule: GemmSchedule, chosen: tuple[Schedule, ...]) -> Structure:
    summary = "; then ".join([schedule.summary, *(one.summary for one in chosen)])
    id = "-then-".join([schedule.id, *(one.id for one in chosen)])
    write = partial(chain_text, chain, schedule.write, chosen)
    return Structure(id, summary, write, resort=schedule.resort, notes=chain.notes)


# -- the family of GEMMs and convolutions --

TARGETS = MATRIX_PRODUCTS | {CONVOLUTION}
_KEPT = TARGETS | {"triu", "tril", "diag_embed"}

PRODUCTS = Family("products", _KEPT, _matches)
