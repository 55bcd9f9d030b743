"""In the reference's process: what a case's results must be, by running the reference in several arithmetics.

f64 is the truth, and f64 with the roundings of an honest kernel put in says how far that may be off. Both are the
reference's own operations, run one by one. For the truth every float is f64, also where the reference's operations
round to a narrower one on the way; what it casts to 16 bits in so many words is rounded to them. For the tolerance
each operation's result is moved by as much as a plain kernel's rounding would move it: by a rounding or two where it
works element by element, and by what one running f32 sum of all its terms does where it adds up. What comes out
differs from the truth by what an honest kernel may differ: little for a well-conditioned element, much for one where
terms cancel, whatever comes after in the reference. No operation is run in f32, so nothing depends on how PyTorch
itself orders a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import Precision
from tilewright.reference import ReferenceProblem
from tilewright.verify.tolerance import Expected, Order
from tilewright.verify.wide_convolution import wide_convolution

Tensors = dict[str, torch.Tensor]
Call = Callable[[Tensors], tuple[torch.Tensor, ...]]

_MOVES = 4  # times that the truth is computed again with roundings put in
_MOVES_OF_LARGE = 3
_LARGE = 4_000_000  # elements of all inputs

NARROW = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
WIDE = torch.float64

LONGEST_RUNNING_SUM = 16_384  # terms; longer ones no kernel adds up in one thread
# A running sum of K random terms is off by about this much of sqrt(K) roundings of its size, in the mean square.
_RUNNING_SUM = 0.3
_POINTWISE = 2.0  # roundings in one operation: an approximate exponential or division has as many
# Of the largest rounding so far: what lies so near to the middle of two 16-bit numbers may be cast to either.
_NEAR_THE_MIDDLE = 6.0
_MOST_NEAR_THE_MIDDLE = 2.0**-14  # a step of 16 bits is crossed at most

# Operations whose results are exact whatever the arithmetic: copies, choices, comparisons, rounding to whole numbers.
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
# Multiply and add up: operation -> number of terms of a sum, from its tensors.
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
# The sum's error moves the result, not the terms it is made of; those are exponentials of distances to the maximum.
_SOFTMAXES = frozenset({"_softmax", "_log_softmax", "_safe_softmax"})
_LOGARITHMS = frozenset({"_log_softmax", "logsumexp"})  # the same, and the sum's error is one of its logarithm
_SELECTIONS = frozenset({"nll_loss_forward", "nll_loss2d_forward"})  # of one class each, added up where that is asked
_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp", "cumsum_", "cumprod_"})
_OF_PROBABILITIES = frozenset({"binary_cross_entropy"})  # which raise at anything above 1
_ROUNDED = frozenset({"add", "sub", "rsub", "mul", "div"})  # of which every machine gives the nearest number
_SORTS = frozenset({"sort", "topk"})  # which promise nothing about equal numbers
_FIRSTS = frozenset({"argmax", "argmin", "max", "min"})  # which promise the first of equal numbers
_CENTRED = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"})
_NORMS = _CENTRED | {"_fused_rms_norm"}


@dataclass(frozen=True)
class Unperturbed:
    """Every result of the reference at its dtype and in f64, or as wide as it bears; `contracted`, and what was sorted,
    are as in `Expected`."""

    own: tuple[torch.Tensor, ...]
    truth: tuple[torch.Tensor, ...]
    width: torch.dtype | None
    orders: tuple[Order | None, ...]
    contracted: bool

    def expected(self, moved: Sequence[tuple[torch.Tensor, ...]] = ()) -> list[Expected]:
        """With the results that it has where roundings are put in, each time those of all."""
        return [
            Expected(mine, theirs, tuple(one[position] for one in moved), self.orders[position], self.contracted)
            for position, (mine, theirs) in enumerate(zip(self.own, self.truth, strict=True))
        ]


def unperturbed(call: Call, tensors: Tensors) -> Unperturbed:
    torch.manual_seed(0)
    own = call(tensors)
    width, truth, orders, contracted = _truth(call, tensors, own)
    return Unperturbed(own, truth, width, tuple(orders), contracted)


def expectations(
    call: Call,
    tensors: Tensors,
    precision: Precision,
    *,
    moves: int | None = None,
    first_seed: int = 1,
    wider: float = 1.0,
    known: Unperturbed | None = None,
) -> list[Expected]:
    """Every result of the reference: at its dtype, in f64, and `moves` times in f64 with honest roundings put in, or
    `wider` ones. `known` is what is known of the first two."""
    known = known or unperturbed(call, tensors)
    dtype = _working_dtype(tensors, known.own)
    roundings = Roundings.of(precision, dtype, any(one.dtype == torch.float32 for one in tensors.values()))
    roundings = roundings.wider(wider)
    if moves is None:
        moves = _MOVES_OF_LARGE if sum(one.numel() for one in tensors.values()) > _LARGE else _MOVES
    return known.expected(
        [_moved(call, tensors, known.width, roundings, first_seed + number) for number in range(moves)]
    )


def in_f64(call: Call, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The results in f64, or in the widest arithmetic that the reference bears."""
    return _truth(call, tensors, ())[1]


def _working_dtype(tensors: Tensors, own: tuple[torch.Tensor, ...]) -> torch.dtype:
    """f64 only where everything is: a kernel of mixed types may work in f32."""
    floats = [one.dtype for one in (*tensors.values(), *own) if one.is_floating_point()]
    return torch.float64 if floats and all(one == torch.float64 for one in floats) else torch.float32


def _truth(
    call: Call, tensors: Tensors, own: tuple[torch.Tensor, ...]
) -> tuple[torch.dtype | None, tuple[torch.Tensor, ...], list[Order | None], bool]:
    """The results in the widest arithmetic the reference bears: f64, else f32, else its own; what was sorted, and
    whether products were added up."""
    for width in (WIDE, torch.float32):
        arithmetic = Arithmetic(width)
        try:
            results = _in_arithmetic(call, _widened(tensors, width), width, arithmetic)
            return width, results, [arithmetic.order_of(one) for one in results], arithmetic.contracted
        except torch.OutOfMemoryError:
            raise  # the caller cuts the call, or says so; a narrower truth would not be one
        except Exception as error:  # a reference that insists on its dtype
            refused = error
    if isinstance(refused, ReferenceProblem):
        raise refused
    return None, own, [None for _ in own], True


def _moved(
    call: Call, tensors: Tensors, width: torch.dtype | None, roundings: Roundings, seed: int
) -> tuple[torch.Tensor, ...]:
    if width is None:
        return _in_arithmetic(call, tensors, torch.float32, Arithmetic(torch.float32, roundings, seed))
    wide = perturbed_inputs(_widened(tensors, width), roundings, seed)
    for name, one in tensors.items():
        if one.dtype in (torch.float32, torch.float64):
            # A number of few bits is exact in any arithmetic: halves are ties that no rounding decides.
            wide[name] = torch.where(one == one.bfloat16(), one.to(width), wide[name])
        elif one.dtype in NARROW and one.numel() and _ends_at_one(one):
            wide[name].clamp_(max=1.0)
    return _in_arithmetic(call, wide, width, Arithmetic(width, roundings, seed))


def _ends_at_one(one: torch.Tensor) -> bool:
    """Whether all lie from 0 to 1 with 1 among them: perhaps probabilities, of which a reference takes no others."""
    low, high = one.aminmax()
    return bool(low >= 0) and float(high) == 1.0


def _in_arithmetic(
    call: Call, tensors: Tensors, width: torch.dtype, arithmetic: Arithmetic
) -> tuple[torch.Tensor, ...]:
    usual = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(width)
    try:
        with arithmetic:
            return call(tensors)
    finally:
        torch.set_default_dtype(usual)


def _widened(tensors: Tensors, width: torch.dtype) -> Tensors:
    return {name: one.to(width) if one.dtype in NARROW else one for name, one in tensors.items()}


# -- the arithmetics --


@dataclass(frozen=True)
class Roundings:
    """Sizes of the roundings put in, relative to what is rounded."""

    work: float  # of one operation
    operands: float = 0.0  # of what is multiplied and added up, beyond the sum's own
    convolved: float = 0.0  # the same, in convolutions
    times: float = 1.0  # what an honest kernel's are; the sizes above have it in them

    def wider(self, times: float) -> Roundings:
        return Roundings(self.work * times, self.operands * times, self.convolved * times, times)

    @classmethod
    def of(cls, precision: Precision, dtype: torch.dtype, takes_f32: bool = False) -> Roundings:
        """What a task of this dtype permits inside a kernel; `takes_f32`: some of its inputs are f32."""
        if dtype == torch.float64:
            return cls(2.0**-53)
        if precision is Precision.TF32:
            return cls(2.0**-24, operands=2.0**-11, convolved=2.0**-11)
        if precision is Precision.HALF:
            return cls(2.0**-9, operands=2.0**-9, convolved=2.0**-9)
        # PyTorch may round the operands of f32 convolutions to TF32 unless told not to; 16-bit ones fit as they are.
        return cls(2.0**-24, convolved=2.0**-11 if takes_f32 and precision.rounds_convolutions else 0.0)


class Arithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, floats are f64 where a narrower type is asked for; with `roundings`, results are moved too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking for it imports the compiler, which takes seconds

    def __init__(self, width: torch.dtype = WIDE, roundings: Roundings | None = None, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._width = width
        self._roundings = roundings
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._sides: dict[torch.device, torch.Generator] = {}
        self._largest = 0.0  # rounding that was put in
        self.contracted = False  # whether products were added up
        self._orders: dict[int, tuple[torch.Tensor, Order]] = {}  # by the address of the places, which are kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.rpartition("::")[2]
        cast = kwargs.get("dtype") if name == "_to_copy" else None
        if kwargs.get("dtype") in NARROW:
            kwargs["dtype"] = self._width
        changes = func._schema.is_mutable
        self.contracted |= name in _CONTRACTIONS or name.startswith(_ATTENTION)
        if not changes:
            args, kwargs = self._widened(args), {key: self._widened(value) for key, value in kwargs.items()}
        if self._roundings is None or name in _EXACT:
            results = _called(func, name, args, kwargs)
            self._remember_order(name, args, kwargs, results)
            return self._cast(args[0], results, cast) if cast in _HALVES else results
        terms = _terms(name, args)
        given = args
        if name in _SOFTMAXES or name in _LOGARITHMS:
            args = (self._moved_exponents(args[0], args[1]), *args[1:])
        elif not changes:
            args = self._moved_all(args, (self._sum_size(terms) if terms > 1 else 0.0) + self._operand_size(name))
        if name in _OF_PROBABILITIES:  # a sigmoid of 1 that was moved
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
            return self._moved_in_place(results, size)
        moved = self._moved_all(results, size)
        if name in _ROUNDED and isinstance(results, torch.Tensor) and results.is_floating_point():
            # A result of few bits is exact in any arithmetic: halves are ties that no rounding decides.
            return torch.where(results == results.bfloat16(), results, moved)
        return moved

    def _cast(self, given: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The value of what is given, rounded to 16 bits and wide again.

        A kernel's own roundings decide to which side a number in the middle goes, and a few of a million lie there.
        Each of two seeds takes the other side, for chance would leave many where they are.
        """
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
        return value.to(dtype).to(self._width)

    # -- what was sorted --

    def order_of(self, places: torch.Tensor) -> Order | None:
        """What was sorted, where these are the places of that."""
        _, order = self._orders.get(places.data_ptr(), (None, None))
        if order is None or order.values.ndim - places.ndim not in (0, 1 if order.first else 0):
            return None
        return order

    def _remember_order(self, name: str, args: Any, kwargs: dict[str, Any], results: Any) -> None:
        if name in _SORTS and not kwargs.get("stable"):
            place = 2 if name == "topk" else 1
            dim = kwargs.get("dim", args[place] if len(args) > place and not isinstance(args[place], bool) else -1)
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

    # -- sizes --

    def _sum_size(self, terms: int) -> float:
        """Sums are made in f32 whatever else is permitted."""
        assert self._roundings is not None
        unit = min(self._roundings.work, 2.0**-24 * self._roundings.times)
        return unit * max(1.0, _RUNNING_SUM * math.sqrt(min(terms, LONGEST_RUNNING_SUM)))

    def _operand_size(self, name: str) -> float:
        assert self._roundings is not None
        if name in _CONVOLUTIONS:
            return self._roundings.convolved
        return self._roundings.operands if name in _CONTRACTIONS or name.startswith(_ATTENTION) else 0.0

    # -- moving --

    def _widened(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self._width) if value.dtype in NARROW and self._width == WIDE else value
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return type(value)(self._widened(item) for item in value)
        return value

    def _moved_all(self, value: Any, size: float) -> Any:
        if not size:
            return value
        if isinstance(value, torch.Tensor):
            return value * self._factor(value, size) if value.is_floating_point() else value
        if isinstance(value, (list, tuple)):
            return type(value)(self._moved_all(item, size) for item in value)
        return value

    def _moved_exponents(self, value: torch.Tensor, dims: int | list[int]) -> torch.Tensor:
        assert self._roundings is not None
        distance = value - value.amax(dims, keepdim=True)
        step = distance * (self._factor(value, _POINTWISE * self._roundings.work) - 1.0)
        return torch.where(step.isfinite(), value + step, value)

    def _step_of_logarithm(self, value: torch.Tensor, dims: int | list[int], rank: int, terms: int) -> torch.Tensor:
        """What the logarithm of a sum is off by: the sum's own error, and a rounding of the maximum added to it."""
        assert self._roundings is not None
        largest = value.amax(dims, keepdim=rank == value.ndim)
        step = largest * (self._factor(largest, self._roundings.work) - 1.0)
        step = torch.where(step.isfinite(), step, 0.0)
        return step + (self._factor(largest, self._sum_size(terms)) - 1.0)

    def _step_of_centring(self, args: Any) -> torch.Tensor:
        """What is left where one element alone is normalised: scaled first and then centred, it is off a little."""
        assert self._roundings is not None
        value: torch.Tensor = args[0]
        epsilon = [one for one in args if isinstance(one, float)][-1]
        weights = [one for one in args[1:4] if isinstance(one, torch.Tensor) and one.is_floating_point()]
        scale = (float(weights[0].abs().max()) if weights else 1.0) / math.sqrt(max(epsilon, 1e-30))
        return value * scale * (self._factor(value, self._roundings.work) - 1.0)

    def _step_of_mean(self, name: str, args: Any, results: Any) -> torch.Tensor | float:
        """What normalised elements are off by where the mean is rounded: all of a group to one side."""
        assert self._roundings is not None
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

    def _moved_in_place(self, value: Any, size: float) -> Any:
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
    """Wide inputs one rounding away: what the arithmetic inside a fused operation does at the least."""
    generator = torch.Generator(device=next(iter(tensors.values())).device) if tensors else torch.Generator()
    generator.manual_seed(seed)
    moved = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensor = tensor * _near_one(tensor, roundings.work, generator)
        moved[name] = tensor
    return moved


def _near_one(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Factors around 1, off by `size` in the mean square: evenly spread, for two of one size would often cancel."""
    drawn = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float32)
    even = drawn.mul_(2.0).sub_(1.0)  # exact, for what is drawn has 24 bits
    return even.to(value.dtype, copy=True).mul_(size * math.sqrt(3.0)).add_(1.0)


def _called(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation's results; of one for which a GPU has no quick way in f64, by one that has."""
    if name == "convolution" and not kwargs and args[0].is_cuda and args[0].dtype == args[1].dtype == WIDE:
        return wide_convolution(*args)
    return func(*args, **kwargs)


def _terms(name: str, args: Any) -> int:
    """How many terms the operation adds up, as far as its arguments alone say; 1 where they do not."""
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    counted = _CONTRACTIONS.get(name)
    if counted is not None:
        return counted(tensors)
    if name.startswith(_ATTENTION):
        return int(tensors[1].shape[-2] + tensors[0].shape[-1])
    if not tensors or not tensors[0].ndim:
        return 1
    first = tensors[0]
    if name in _NORMS:
        return _norm_terms(name, first, args)
    if name in _SELECTIONS:
        return tensors[1].numel() if args[3] else 1
    if (name in _SOFTMAXES or name in _SCANS) and len(args) > 1 and isinstance(args[1], int):
        return int(first.shape[args[1]])
    if name in ("sum", "mean", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm", "prod", "logsumexp"):
        return _reduced(first, args)
    return 1


def _norm_terms(name: str, first: torch.Tensor, args: Any) -> int:
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return math.prod(args[1])
    if name == "native_group_norm":
        return first.numel() // max(first.shape[0] * int(args[6]), 1)
    return first.numel() // max(first.shape[1], 1)


def _reduced(first: torch.Tensor, args: Any) -> int:
    dims = next((one for one in args[1:] if isinstance(one, (list, tuple)) and one), None)
    if dims is None:
        return first.numel()
    return math.prod(first.shape[dim] for dim in dims)


def _shrunk_by(args: Any, results: Any) -> int:
    """Terms of a sum as a ratio of elements: for operations that no table names."""
    given = max((one.numel() for one in args if isinstance(one, torch.Tensor)), default=1)
    made = results if isinstance(results, (list, tuple)) else [results]
    kept = max((one.numel() for one in made if isinstance(one, torch.Tensor)), default=given)
    return given // kept if kept else 1
