"""In the reference's process: PyTorch calls in f64, with or without a correct kernel's roundings after every operation.

What was sorted and what was cast to integers is remembered, for results of which several are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import Precision
from tilewright.verify.tolerance import Order, Step, stepped
from tilewright.verify.wide_convolution import wide_convolution

NARROW = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
WIDE = torch.float64

LONGEST_RUNNING_SUM = 16_384  # terms; no kernel sums more in one thread
# The RMS error of a running sum of K random terms is about this much of sqrt(K) roundings of its size.
_RUNNING_SUM = 0.3
_POINTWISE = 2.0  # roundings per elementwise operation, as in a fast exponential or division
# In largest roundings so far: a number this close to the midpoint of two 16-bit numbers may be cast to either.
_NEAR_THE_MIDDLE = 6.0
_MOST_NEAR_THE_MIDDLE = 2.0**-14  # at most one 16-bit step

# Operations with exact results in any arithmetic: copies, selections, comparisons, rounding to integers.
_EXACT_NAMES = """
    neg abs abs_ neg_ clone copy_ _to_copy to cat stack index index_select gather embedding take where masked_fill
    masked_fill_ masked_select zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full empty
    empty_like new_empty empty_strided new_empty_strided arange scalar_tensor max min amax amin aminmax maximum minimum
    clamp clamp_ clamp_min clamp_max relu relu_ hardtanh threshold sort topk kthvalue median mode argsort
    constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d roll flip repeat tril triu
    fill fill_ zero_ scatter scatter_ index_put index_put_ index_fill slice_scatter select_scatter diagonal_scatter
    floor ceil round trunc sign sgn max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d lift_fresh
    lift_fresh_copy detach im2col unfold _unsafe_view bernoulli rand randn rand_like randn_like randint cummax cummin
    diag_embed eye linspace nan_to_num floor_divide fmod remainder repeat_interleave unbind_copy split_copy
    upsample_nearest2d tril_indices triu_indices channel_shuffle pixel_shuffle pixel_unshuffle
"""
_EXACT = frozenset(_EXACT_NAMES.split())
# Contractions: operation -> number of terms of a sum, from its tensors.
_CONTRACTIONS: dict[str, Callable[[list[torch.Tensor]], int]] = {
    "mm": lambda t: t[0].shape[-1],
    "bmm": lambda t: t[0].shape[-1],
    "mv": lambda t: t[0].shape[-1],
    "dot": lambda t: t[0].shape[-1],
    "vdot": lambda t: t[0].shape[-1],
    "addmm": lambda t: t[1].shape[-1],
    "baddbmm": lambda t: t[1].shape[-1],
    "addbmm": lambda t: t[1].shape[0] * t[1].shape[-1],
    "addmv": lambda t: t[1].shape[-1],
    "linear": lambda t: t[0].shape[-1],
    "convolution": lambda t: t[1].numel() // max(t[1].shape[0], 1),
    "_convolution": lambda t: t[1].numel() // max(t[1].shape[0], 1),
    "scaled_dot_product_attention": lambda t: t[1].shape[-2] + t[0].shape[-1],
}
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
_ATTENTION = "_scaled_dot_product"  # how the fused forms' names begin
# The sum's error perturbs the result; the exponents, distances to the maximum, are perturbed separately.
_SOFTMAXES = frozenset({"_softmax", "_log_softmax", "_safe_softmax"})
_LOGARITHMS = frozenset({"_log_softmax", "logsumexp"})  # likewise, with the error of the sum's logarithm
_SELECTIONS = frozenset({"nll_loss_forward", "nll_loss2d_forward"})  # of one class each, with an optional sum
_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp", "cumsum_", "cumprod_"})
_OF_PROBABILITIES = frozenset({"binary_cross_entropy"})  # raise above 1
_ROUNDED = frozenset({"add", "sub", "rsub", "mul", "div"})  # correctly rounded everywhere
_TO_WHOLE = frozenset({"floor", "ceil", "round", "trunc"})
_BOUNDED = frozenset({"clamp", "clamp_min", "clamp_max", "hardtanh", "relu"})
_SORTS = frozenset({"sort", "topk"})  # promise no order of ties
# Which of several equal numbers a sort may say is at a place: always the same, any, or an order of them.
TIES = ("first", "last", "any", "lowest", "highest", "reversed", "from 1", "from 2", "from 3", "from the middle")
_FIRSTS = frozenset({"argmax", "argmin", "max", "min"})  # promise the first of ties
# Square numbers on the way: of those below the root of the smallest one, a kernel in f32 has zero.
_SQUARED = frozenset({"std", "std_mean", "linalg_vector_norm", "norm", "dist", "_cdist_forward", "_euclidean_dist"})
_CENTRED = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"})


@dataclass(frozen=True)
class Source:
    """Floats that integers were made of, and what was done to them before the cast: rounding, then bounds."""

    floats: torch.Tensor
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Results:
    """What a call returned; `sources` are what integers among them were cast from, where one cast made them."""

    values: tuple[torch.Tensor, ...]
    sources: tuple[Source | None, ...] = ()


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, remembers which integers were cast from which floats."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and asking would import the compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By the address of what was made of them, which is kept alive.
        self._made: dict[int, tuple[torch.Tensor, Source]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.remember(func, args, kwargs or {}, results)
        return results

    def remember(self, func: Any, args: Any, kwargs: dict[str, Any], results: Any) -> None:
        name = func._schema.name.rpartition("::")[2]
        casts, steps = name == "_to_copy", name in _TO_WHOLE or name in _BOUNDED
        if not (casts or steps) or not isinstance(results, torch.Tensor) or results.dtype == torch.bool:
            return
        known = self._made.get(args[0].data_ptr(), (None, None))[1]
        if steps and not any(isinstance(one, torch.Tensor) for one in (*args[1:], *kwargs.values())):
            if known is None and name in _TO_WHOLE:
                known = Source(args[0].detach().clone())
            if known is not None:
                step = partial(_again, func, args[1:], kwargs)
                self._made[results.data_ptr()] = results, Source(known.floats, (*known.steps, step))
        elif casts and (known is not None or (args[0].is_floating_point() and not results.is_floating_point())):
            # Integers to wider or narrower ones too.
            self._made[results.data_ptr()] = results, known or Source(args[0].detach().clone())

    def of(self, values: tuple[torch.Tensor, ...]) -> Results:
        return Results(values, tuple(self._source_of(one) for one in values))

    def _source_of(self, values: torch.Tensor) -> Source | None:
        whole, source = self._made.get(values.data_ptr(), (None, None))
        if whole is None or source is None or values.dtype != whole.dtype or values.numel() != whole.numel():
            return None
        if values.is_floating_point() or not (values.is_contiguous() and whole.is_contiguous()):
            return None
        if not torch.equal(whole, stepped(source.floats, source.steps).to(whole.dtype)):
            return None  # changed since, or in another order
        return Source(source.floats.reshape(values.shape), source.steps)


def _again(func: Any, more: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = func(value, *more, **kwargs)
    return made


@dataclass(frozen=True)
class Roundings:
    """Sizes of the perturbations, relative to what is perturbed."""

    work: float  # of each operation
    operands: float = 0.0  # of a contraction's operands, beside the sum's error
    convolved: float = 0.0  # the same, in convolutions
    times: float = 1.0  # factor over a correct kernel's roundings, included above

    def wider(self, times: float) -> Roundings:
        return Roundings(self.work * times, self.operands * times, self.convolved * times, times)

    @classmethod
    def of(cls, precision: Precision, dtype: torch.dtype, takes_f32: bool = False) -> Roundings:
        """What a task of this precision permits in a kernel; `takes_f32`: some inputs are f32."""
        if dtype == torch.float64:
            return cls(2.0**-53)
        if precision is Precision.TF32:
            return cls(2.0**-24, operands=2.0**-11, convolved=2.0**-11)
        if precision is Precision.HALF:
            return cls(2.0**-9, operands=2.0**-9, convolved=2.0**-9)
        # PyTorch may round the operands of f32 convolutions to TF32 unless told not to; 16-bit ones fit as they are.
        return cls(2.0**-24, convolved=2.0**-11 if takes_f32 and precision.rounds_convolutions else 0.0)


class Arithmetic(Casts):  # type: ignore[no-untyped-call]
    """While active, floats are f64 where a narrower type is asked for. With `roundings`, results are perturbed. With
    `ties`, sorts say other places of equal numbers."""

    def __init__(
        self, width: torch.dtype = WIDE, roundings: Roundings | None = None, seed: int = 0, ties: str = ""
    ) -> None:
        super().__init__()
        self.width = width
        self.met_ties = False  # whether equal numbers were sorted
        self._ties = ties
        self._perturbs = roundings is not None
        self._roundings = roundings or Roundings(0.0)
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._sides: dict[torch.device, torch.Generator] = {}
        self._largest = 0.0  # perturbation so far
        # In every second run, what is too small for f32 vanishes.
        self._least = torch.finfo(torch.float32).tiny if self._roundings.work >= 2.0**-24 and seed % 2 else 0.0
        self.contracted = False  # whether there was a contraction
        self._orders: dict[int, tuple[torch.Tensor, Order]] = {}  # by the address of the indices, which are kept alive

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.rpartition("::")[2]
        cast = kwargs.get("dtype") if name == "_to_copy" else None
        if kwargs.get("dtype") in NARROW:
            kwargs["dtype"] = self.width
        changes = func._schema.is_mutable
        self.contracted |= name in _CONTRACTIONS or name.startswith(_ATTENTION)
        if not changes:
            args, kwargs = self._widened(args), {key: self._widened(value) for key, value in kwargs.items()}
        if not self._perturbs or name in _EXACT:
            results = _called(func, name, args, kwargs)
            if name in _SORTS and not (self._perturbs or kwargs.get("stable")):
                results = self._with_ties(name, args, kwargs, results)
            self._remember_order(name, args, kwargs, results)
            self.remember(func, args, kwargs, results)
            return self._cast(args[0], results, cast) if cast in _HALVES else results
        terms = _terms(name, args)
        given = args
        if name in _SOFTMAXES or name in _LOGARITHMS:
            args = (self._perturbed_exponents(args[0], args[1]), *args[1:])
        elif not changes:
            contracts = name in _CONTRACTIONS or name.startswith(_ATTENTION)
            operands = self._roundings.convolved if name in _CONVOLUTIONS else self._roundings.operands
            size = operands if contracts else 0.0
            args = self._perturbed(args, (self._sum_size(terms) if terms > 1 else 0.0) + size)
        if name in _OF_PROBABILITIES:  # a perturbed sigmoid may exceed 1
            args = (args[0].clamp(max=1.0), args[1].clamp(max=1.0), *args[2:])
        results = _called(func, name, args, kwargs)
        if not changes and any(one.alias_info is not None for one in func._schema.returns):
            return results  # a view
        terms = max(terms, 1 if name in _SELECTIONS else _shrunk_by(args, results))
        if name in _CENTRED:
            step = self._step_of_centring(given) if terms == 1 else self._step_of_mean(name, given, results)
            results = (results[0] + step, *results[1:])
        if name in _LOGARITHMS:
            results, terms = results + self._step_of_logarithm(given[0], given[1], results.ndim, terms), 1
        size = self._sum_size(terms) if terms > 1 else _POINTWISE * self._roundings.work
        self._largest = max(self._largest, size)
        if changes:
            return self._perturb(results, size)
        moved = self._perturbed(results, size)
        if name in _ROUNDED and isinstance(results, torch.Tensor) and results.is_floating_point():
            # Results of few bits are exact in any arithmetic; perturbing halves would break ties.
            moved = torch.where(results == results.bfloat16(), results, moved)
        return self._vanished(moved, name)

    def _vanished(self, value: Any, name: str) -> Any:
        """The value without numbers that are too small for f32, or whose squares are."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._vanished(one, name) for one in value)
        if not self._least or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return torch.nn.functional.hardshrink(value, math.sqrt(self._least) if name in _SQUARED else self._least)

    def _cast(self, given: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Round to 16 bits and widen again. A kernel's own roundings decide the side of a number near the midpoint, and
        a few of a million are. Alternating seeds take opposite sides, since chance would leave many unchanged."""
        near = min(_NEAR_THE_MIDDLE * self._largest, _MOST_NEAR_THE_MIDDLE)
        if near and given.is_floating_point():
            generator = self._sides.get(value.device)
            if generator is None:
                generator = torch.Generator(device=value.device)
                generator.manual_seed((self._seed + 1) // 2)
                self._sides[value.device] = generator
            sides = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float32)
            sides = sides.sub_(0.5).sign_().mul_(near if self._seed % 2 else -near)
            value = torch.addcmul(value, value, sides.to(value.dtype))
        return value.to(dtype).to(self.width)

    # -- sorted indices --

    def order_of(self, places: torch.Tensor) -> Order | None:
        """What was sorted, where these are the resulting indices."""
        known, order = self._orders.get(places.data_ptr(), (None, None))
        if known is None or order is None or not _lie_alike(known.squeeze(), places.squeeze()):
            return None  # nothing, or a view of the indices, whose dimensions are others
        if order.values.ndim - places.ndim not in (0, 1 if order.first else 0):
            return None
        return order

    def _with_ties(self, name: str, args: Any, kwargs: dict[str, Any], results: Any) -> Any:
        """The results of a sort, with the places of equal numbers chosen as `ties` says."""
        given: torch.Tensor = args[0]
        dim = _sorted_dim(name, args, kwargs)
        if not given.ndim or given.shape[dim] < 2:
            return results
        ordered, places = given.sort(stable=True, dim=dim)
        rest = given.shape[dim] - 1
        differs = ordered.narrow(dim, 1, rest) != ordered.narrow(dim, 0, rest)
        self.met_ties |= not bool(differs.all())
        if not self._ties:
            return results
        groups = torch.zeros_like(places)
        groups.narrow(dim, 1, rest).copy_(differs.cumsum(dim))  # of equal numbers, each with a number
        counts = torch.zeros_like(places).scatter_add_(dim, groups, torch.ones_like(places))
        mine = torch.zeros_like(places).scatter_(dim, places, groups).gather(dim, results[1])
        count = counts.gather(dim, mine)
        start = (counts.cumsum(dim) - counts).gather(dim, mine)
        # The how manieth of its equals each is among those that are chosen, and how many of them these are.
        turn = torch.arange(mine.shape[dim], device=mine.device).view(_along(mine, dim)).expand_as(mine)
        new = torch.cat([torch.ones_like(mine.narrow(dim, 0, 1)), mine.diff(dim=dim).ne(0).to(mine.dtype)], dim)
        turn = turn - torch.where(new.bool(), turn, 0).cummax(dim)[0]
        chosen = torch.zeros_like(counts).scatter_add_(dim, mine, torch.ones_like(mine)).gather(dim, mine)
        part = torch.rand(count.shape, generator=torch.Generator().manual_seed(1)).to(count.device)
        which = {
            "first": torch.zeros_like(count),
            "last": count - 1,
            "any": torch.minimum((part * count).long(), count - 1),
            "highest": count - chosen + turn,
            "reversed": count - 1 - turn,
            "from the middle": (turn + count // 2) % count,
        }.get(self._ties)
        if which is None:
            which = (turn + int(self._ties.removeprefix("from ").replace("lowest", "0"))) % count
        return type(results)((results[0], places.gather(dim, start + which)))

    def _remember_order(self, name: str, args: Any, kwargs: dict[str, Any], results: Any) -> None:
        if name in _SORTS and not kwargs.get("stable"):
            dim = _sorted_dim(name, args, kwargs)
            places, first = results[1], False
        elif name in _FIRSTS and len(args) > 1 and isinstance(args[1], int):
            dim, places, first = args[1], results[1] if isinstance(results, tuple) else results, True
        else:
            dim, places, first = -1, None, False
        if isinstance(places, torch.Tensor) and not places.is_floating_point() and args[0].ndim:
            self._orders[places.data_ptr()] = places, Order(args[0].detach().clone(), dim, first)
        if name == "_to_copy" and isinstance(results, torch.Tensor) and not results.is_floating_point():
            known = self._orders.get(args[0].data_ptr())
            if known is not None:
                self._orders[results.data_ptr()] = results, known[1]

    # -- sizes of perturbations --

    def _sum_size(self, terms: int) -> float:
        """The error of a sum; sums are accumulated in f32 whatever else is permitted."""
        unit = min(self._roundings.work, 2.0**-24 * self._roundings.times)
        return unit * max(1.0, _RUNNING_SUM * math.sqrt(min(terms, LONGEST_RUNNING_SUM)))

    # -- perturbing --

    def _widened(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.width) if value.dtype in NARROW and self.width == WIDE else value
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return type(value)(self._widened(item) for item in value)
        return value

    def _perturbed(self, value: Any, size: float) -> Any:
        if not size:
            return value
        if isinstance(value, torch.Tensor):
            return value * self._factor(value, size) if value.is_floating_point() else value
        if isinstance(value, (list, tuple)):
            return type(value)(self._perturbed(item, size) for item in value)
        return value

    def _perturbed_exponents(self, value: torch.Tensor, dims: int | list[int]) -> torch.Tensor:
        distance = value - value.amax(dims, keepdim=True)
        step = distance * (self._factor(value, _POINTWISE * self._roundings.work) - 1.0)
        return torch.where(step.isfinite(), value + step, value)

    def _step_of_logarithm(self, value: torch.Tensor, dims: int | list[int], rank: int, terms: int) -> torch.Tensor:
        """The error of the logarithm of a sum: the sum's, and a rounding of the maximum that is added."""
        largest = value.amax(dims, keepdim=rank == value.ndim)
        step = largest * (self._factor(largest, self._roundings.work) - 1.0)
        step = torch.where(step.isfinite(), step, 0.0)
        return step + (self._factor(largest, self._sum_size(terms)) - 1.0)

    def _step_of_centring(self, args: Any) -> torch.Tensor:
        """The residue of normalising a single element by scaling before centring."""
        value: torch.Tensor = args[0]
        epsilon = [one for one in args if isinstance(one, float)][-1]
        weights = [one for one in args[1:4] if isinstance(one, torch.Tensor) and one.is_floating_point()]
        scale = (float(weights[0].abs().max()) if weights else 1.0) / math.sqrt(max(epsilon, 1e-30))
        return value * scale * (self._factor(value, self._roundings.work) - 1.0)

    def _step_of_mean(self, name: str, args: Any, results: Any) -> torch.Tensor | float:
        """The error of normalised elements from rounding the mean: a whole group to one side."""
        result: torch.Tensor = results[0]
        mean: torch.Tensor = results[1]
        scale: torch.Tensor = results[2]
        if not mean.numel():
            return 0.0  # one that is given
        step = mean * (self._factor(mean, self._roundings.work) - 1.0) * scale
        weight: torch.Tensor | None = args[2] if name == "native_layer_norm" else args[1]
        if name == "native_layer_norm":
            return step if weight is None else step * weight
        channels = (1, result.shape[1], *(1 for _ in result.shape[2:]))
        if name == "native_group_norm":
            step = step.repeat_interleave(result.shape[1] // mean.shape[1], 1)
        step = step.view(*step.shape, *channels[2:]) if step.ndim > 1 else step.view(channels)
        return step if weight is None else step * weight.view(channels)

    def _perturb(self, value: Any, size: float) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.mul_(self._factor(value, size))
        return value

    def _factor(self, value: torch.Tensor, size: float) -> torch.Tensor:
        generator = self._generators.get(value.device)
        if generator is None:
            generator = torch.Generator(device=value.device)
            generator.manual_seed(self._seed)
            self._generators[value.device] = generator
        return _near_one(value, size, generator)


def perturbed_inputs(tensors: dict[str, torch.Tensor], roundings: Roundings, seed: int) -> dict[str, torch.Tensor]:
    """Wide inputs one rounding away, as the internals of a fused operation are at least."""
    generator = torch.Generator(device=next(iter(tensors.values())).device) if tensors else torch.Generator()
    generator.manual_seed(seed)
    moved = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.element_size() > 1:  # 8 bits are exact, and not multiplied with
            tensor = tensor * _near_one(tensor, roundings.work, generator)
        moved[name] = tensor
    return moved


def _near_one(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Factors around 1 with RMS deviation `size`, uniformly distributed: two of one magnitude would often cancel."""
    drawn = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float32)
    even = drawn.mul_(2.0).sub_(1.0)  # exact, for what is drawn has 24 bits
    return even.to(value.dtype, copy=True).mul_(size * math.sqrt(3.0)).add_(1.0)


def _called(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operation; a convolution for which a GPU has no fast f64 kernel is run by `wide_convolution`."""
    if name == "convolution" and not kwargs and args[0].is_cuda and args[0].dtype == args[1].dtype == WIDE:
        return wide_convolution(*args)
    return func(*args, **kwargs)


def _along(value: torch.Tensor, dim: int) -> list[int]:
    """The shape of numbers along one dimension of a tensor."""
    return [-1 if one == dim % value.ndim else 1 for one in range(value.ndim)]


def _sorted_dim(name: str, args: Any, kwargs: dict[str, Any]) -> int:
    place = 2 if name == "topk" else 1
    dim: int = kwargs.get("dim", args[place] if len(args) > place and not isinstance(args[place], bool) else -1)
    return dim


def _lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.stride() == b.stride()


def _terms(name: str, args: Any) -> int:
    """The length of the operation's sums as far as its arguments tell; 1 where they do not."""
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    counted = _CONTRACTIONS.get(name)
    if counted is not None:
        return counted(tensors)
    if name.startswith(_ATTENTION):
        return int(tensors[1].shape[-2] + tensors[0].shape[-1])
    if not tensors or not tensors[0].ndim:
        return 1
    first = tensors[0]
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return math.prod(args[1])
    if name in _CENTRED:
        return first.numel() // max(first.shape[0] * int(args[6]) if name == "native_group_norm" else first.shape[1], 1)
    if name in _SELECTIONS:
        return tensors[1].numel() if args[3] else 1
    if (name in _SOFTMAXES or name in _SCANS) and len(args) > 1 and isinstance(args[1], int):
        return int(first.shape[args[1]])
    if name in ("sum", "mean", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm", "prod", "logsumexp"):
        dims = next((one for one in args[1:] if isinstance(one, (list, tuple)) and one), None)
        return first.numel() if dims is None else math.prod(first.shape[dim] for dim in dims)
    return 1


def _shrunk_by(args: Any, results: Any) -> int:
    """The length of a sum as the ratio of elements, for operations in no table."""
    given = max((one.numel() for one in args if isinstance(one, torch.Tensor)), default=1)
    made = results if isinstance(results, (list, tuple)) else [results]
    kept = max((one.numel() for one in made if isinstance(one, torch.Tensor)), default=given)
    return given // kept if kept else 1
