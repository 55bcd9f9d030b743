"""What an attention task computes: where queries, keys and values lie, the mask, and where the result goes.

It is read from the graph of products and a softmax that PyTorch makes of `scaled_dot_product_attention`, and that
people write by hand: the second product's element is followed back to the softmax, and from there to the first product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.playbook.attention.scores import ScoreReader, Scores, peeled_factors, read_scores, scale_text
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import kind_of
from tilewright.playbook.places.indices import Index, Quotient, Remainder, Variable, of_variable
from tilewright.playbook.places.program import PlacedProgram, places_of, whole_program
from tilewright.playbook.places.reader import PlaceReader, PlaceRule, Places, Read, Whole
from tilewright.playbook.places.rules import PLACE_RULES
from tilewright.playbook.row_program import Load, Pointwise
from tilewright.playbook.tracing import TracedNode
from tilewright.records import DType

PRODUCTS = frozenset(("bmm", "mm"))
SAFE_SOFTMAX = "_safe_softmax"  # weights of a row of minus infinities are zeros, and not NaN
SOFTMAXES = frozenset(("_softmax", SAFE_SOFTMAX))


@dataclass(frozen=True)
class Attention:
    """Units are pairs of keys and values; the query heads that share one are numbered by `sharing`."""

    placed: PlacedProgram
    query: Read
    key: Read
    value: Read
    units: tuple[Variable, ...]
    sharing: tuple[Variable, ...]
    row: Variable
    along: Variable  # numbers the keys
    depth: Variable  # of a query and a key
    column: Variable  # of a value and the result
    scores: Scores
    score_leaf: str  # stands for the product of a query and a key
    result_leaf: str  # and this for the weighted sum
    zero_where_masked: bool  # a row without a key gives zeros, and not NaN

    @property
    def element(self) -> DType:
        return self.query.dtype

    @property
    def heads(self) -> tuple[Variable, ...]:
        """All that numbers a matrix of queries."""
        return (*self.units, *self.sharing)

    @property
    def is_plain(self) -> bool:
        """Whether the weighted sums are stored as they are."""
        value = self.placed.values[self.placed.outputs[0].value]
        return isinstance(value, Load) and value.input == self.result_leaf


def attention_program(traced: TracedTask) -> Attention:
    """The one attention of the task. Raises `NotSupported` for anything else."""
    rules: dict[str, PlaceRule] = {**PLACE_RULES, **dict.fromkeys(SOFTMAXES, _as_whole)}
    reader = ScoreReader(traced, rules, PRODUCTS)
    placed = whole_program(reader, "of attention")
    if len(placed.outputs) != 1:
        raise NoMatch
    result_leaf, result = _only_product(placed)
    node = reader.nodes[result.node]
    row, column = _variable(result.places[-2], "at_row", reader), _variable(result.places[-1], "at_column", reader)
    along = Variable("at_key", reader.shape(reader.source(node))[-1])
    unit = result.places[:-2]

    weights = reader.argument(node, 0, (*unit, result.places[-2], of_variable(along)))
    softmax, is_safe = _softmax(reader, weights)
    dim = reader.dimension(reader.nodes[softmax.node], 1, "dim", len(softmax.places))
    if softmax.places[dim] != of_variable(along):
        raise NoMatch
    score = reader.argument(reader.nodes[softmax.node], 0, softmax.places)
    score_leaf, product, swapped = _score_product(reader, score, along)
    first = reader.nodes[product.node]
    depth = Variable("in_depth", reader.shape(reader.source(first))[-1])
    a = (*product.places[:-1], of_variable(depth))
    b = (*product.places[:-2], of_variable(depth), product.places[-1])
    operands = [reader.argument(first, 0, a), reader.argument(first, 1, b)]
    if swapped:
        operands.reverse()
    value = reader.argument(node, 1, (*unit, of_variable(along), result.places[-1]))
    reads, factors = [], []
    for one in (*operands, value):
        bare, numbers = peeled_factors(reader, one)
        reads.append(_read(reader, bare))
        factors.append(numbers)
    if factors[2]:
        raise NoMatch
    own = next(index for index, one in enumerate(reader.values) if one == Load(score_leaf))
    scores = read_scores(reader, score, own, row, along)
    scores = replace(scores, scale=_with_factors(scores.scale, factors[0] + factors[1]))
    placed = placed.renewed(reader, *([scores.value] if scores.value is not None else []))
    query, key, weighed = reads
    made = Attention(
        placed, query, key, weighed, (), (), row, along, depth, column, scores, score_leaf, result_leaf, is_safe
    )
    return _checked(_with_units(_split_heads(made)))


# -- reading --


def _as_whole(reader: PlaceReader, index: int, node: TracedNode, places: Places) -> int:
    return reader.leaf("softmax", Whole(index, places, ()), kind_of(node.result.dtype))


def _only_product(placed: PlacedProgram) -> tuple[str, Whole]:
    wholes = placed.wholes
    if len(wholes) != 1:
        raise NoMatch
    ((name, whole),) = wholes.items()
    if whole.conditions or len(whole.places) < 2:
        raise NoMatch
    return name, whole


def _variable(place: Index, wanted: str, reader: ScoreReader) -> Variable:
    """The loop variable that a place is, or one of size 1 where it is always 0; heads are split off later."""
    if not place.terms and place.constant.is_always(0):
        return Variable(wanted, reader.book.number(1))
    atom = place.atoms[0] if len(place.terms) == 1 and place.terms[0][1].is_always(1) else None
    if not place.constant.is_always(0) or not isinstance(atom, (Variable, Remainder, Quotient)):
        raise NoMatch
    if isinstance(atom, Remainder):
        return Variable(wanted, atom.divisor)
    if isinstance(atom, Quotient):
        raise NoMatch
    return atom


def _softmax(reader: ScoreReader, weights: int) -> tuple[Whole, bool]:
    """The softmax that weights are, and whether rows that are masked as a whole have weights of zero."""
    bare, factors = peeled_factors(reader, weights)
    made = reader.values[bare]
    leaf = reader.leaves[made.input] if isinstance(made, Load) else None
    if not isinstance(leaf, Whole) or reader.nodes[leaf.node].target not in SOFTMAXES or factors:
        raise NoMatch
    return leaf, reader.nodes[leaf.node].target == SAFE_SOFTMAX


def _score_product(reader: ScoreReader, score: int, along: Variable) -> tuple[str, Whole, bool]:
    """The product that scores are made of; and whether it is of keys and queries, the other way round."""
    found = {name: leaf for name, leaf in _leaves(reader, score) if isinstance(leaf, Whole)}
    if len(found) != 1:
        raise NoMatch
    ((name, leaf),) = found.items()
    if reader.nodes[leaf.node].target not in PRODUCTS or leaf.conditions:
        raise NoMatch
    if leaf.places[-1] == of_variable(along):
        return name, leaf, False
    if leaf.places[-2] == of_variable(along):
        return name, leaf, True
    raise NoMatch


def _leaves(reader: ScoreReader, value: int) -> list[tuple[str, object]]:
    found: dict[str, object] = {}
    todo = [value]
    while todo:
        made = reader.values[todo.pop()]
        if isinstance(made, Load):
            found[made.input] = reader.leaves[made.input]
        elif isinstance(made, Pointwise):
            todo += made.arguments
    return list(found.items())


def _read(reader: ScoreReader, value: int) -> Read:
    made = reader.values[value]
    leaf = reader.leaves[made.input] if isinstance(made, Load) else None
    if not isinstance(leaf, Read) or leaf.conditions or leaf.place.lookups:
        raise NoMatch
    return leaf


def _with_factors(scale: str, factors: tuple[str, ...]) -> str:
    return scale_text(((scale,) if scale != "1.0" else ()) + factors) if factors else scale


# -- loop variables --


def _indices(made: Attention) -> list[Index]:
    leaves = (leaf for name, leaf in made.placed.leaves_of(made.placed.targets).items())
    places = [place for leaf in leaves for place in places_of(leaf)]
    return [*places, made.query.place, made.key.place, made.value.place, *(one.place for one in made.placed.outputs)]


def _split_heads(made: Attention) -> Attention:
    """With two variables for one that somebody divides: heads that share keys, and heads side by side in a row."""
    for _ in range(8):
        found = next((atom for index in _indices(made) for atom in _divided(index)), None)
        if found is None:
            return made
        (variable,) = found.index.atoms
        assert isinstance(variable, Variable)
        if not found.divisor.divides(variable.size):
            raise NoMatch
        outer = Variable(f"{variable.name}_outer", variable.size.over(found.divisor))
        inner = Variable(f"{variable.name}_inner", found.divisor)
        joined = of_variable(outer).times(found.divisor).plus(of_variable(inner))
        made = _changed(made, variable, (outer, inner), joined)
    raise NoMatch


def _divided(index: Index) -> list[Quotient | Remainder]:
    return [
        atom
        for atom in index.atoms
        if isinstance(atom, (Quotient, Remainder))
        and len(atom.index.terms) == 1
        and isinstance(atom.index.atoms[0], Variable)
        and atom.index.terms[0][1].is_always(1)
        and atom.index.constant.is_always(0)
    ]


def _changed(made: Attention, old: Variable, new: tuple[Variable, ...], index: Index) -> Attention:
    def change(one: Variable) -> Index | None:
        return index if one == old else None

    variables = tuple(two for one in made.placed.variables for two in (new if one == old else (one,)))
    reads = [replace(one, place=one.place.replaced(change)) for one in (made.query, made.key, made.value)]
    row, column = (new[-1] if one == old else one for one in (made.row, made.column))
    if column == made.column and column not in made.placed.variables and column.size == new[-1].size:
        column = new[-1]  # the result has its heads side by side
    query, key, value = reads
    placed = made.placed.changed(variables, change)
    return replace(made, placed=placed, query=query, key=key, value=value, row=row, column=column)


def _with_units(made: Attention) -> Attention:
    heads = [one for one in made.placed.variables if one not in (made.row, made.column)]
    units = tuple(one for one in heads if made.key.place.mentions(one) or made.value.place.mentions(one))
    return replace(made, units=units, sharing=tuple(one for one in heads if one not in units))


def _checked(made: Attention) -> Attention:
    """Raises `NotSupported` unless everything is linear in its own variables and elements of a row lie side by side."""
    known = {*made.heads, made.row, made.along, made.depth, made.column}
    for index in (made.query.place, made.key.place, made.value.place, *(one.place for one in made.placed.outputs)):
        if any(atom not in known for atom in index.atoms):
            raise NoMatch
    innermost = (
        (made.query, made.depth, (made.along, made.column)),
        (made.key, made.depth, (made.row, made.column)),
        (made.value, made.column, (made.row, made.depth)),
    )
    for read, inner, foreign in innermost:
        factor = read.place.factor(inner)
        if factor is None or not factor.is_always(1) or any(read.place.mentions(one) for one in foreign):
            raise NoMatch
    if len({made.query.dtype, made.key.dtype, made.value.dtype}) > 1 or not made.query.dtype.is_float:
        raise NoMatch
    return made
