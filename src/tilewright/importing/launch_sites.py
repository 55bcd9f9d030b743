"""Isolates one launch from host code that cannot be run: `main`, library calls, reads of tensor values, classes.

The launch becomes a function that is imported like any launcher. Its parameters are the pointers that the launch passes
and the numbers that cannot be computed from others; definitions of the other numbers are copied. Only straight-line
definitions are copied: a number that a branch or a call may change is a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tilewright.importing.device_text import Definition, definitions, spelled, split_declarators
from tilewright.importing.signatures import (
    Field,
    fields,
    parameter_name,
    parameters,
    split_commas,
    template_parameters,
    type_of,
)
from tilewright.importing.sources import ImportProblem, Item, Kind, Source, parsed
from tilewright.kernel_file.cpp_tokens import CppToken, closing
from tilewright.records.gpu import reached

_NUMBERS = frozenset((
    "unsigned", "signed", "int", "long", "short", "char", "bool", "float", "double", "size_t", "uint", "ulong",
    "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "ptrdiff_t", "index_t",
    "auto", "const", "constexpr", "static", "std", "::",
))  # fmt: skip
_KNOWN = _NUMBERS | frozenset((
    "sizeof", "static_cast", "dim3", "void", "min", "max", "ceil", "ceilf", "floor", "sqrt", "sqrtf", "pow", "powf",
    "true", "false", "nullptr", "NULL", "float2", "float4", "int4", "half", "__half", "and", "or", "not", "INT_MAX",
))  # fmt: skip
TYPES = ("float", "__half", "__nv_bfloat16")  # for template parameters, the likeliest first
_QUALIFIERS = frozenset(("const", "constexpr", "static", "__restrict__", "&", "volatile", "__grid_constant__"))


@dataclass(frozen=True)
class LaunchSite:
    """A launch in a host function."""

    host: Item
    kernel: Item
    line: int
    at: int  # index of `<<<` in the host function's tokens

    @property
    def name(self) -> str:
        """The op's name: the host function's if this is its only launch, else the kernel's."""
        alone = sum(token.text == "<<<" for token in self.host.tokens) == 1
        return self.host.name if alone and self.host.name != "main" else self.kernel.name


def launch_sites(source: Source) -> list[LaunchSite]:
    """The launches in host functions, each kernel once per function."""
    kernels = {item.name: item for item in source.of_kind(Kind.KERNEL) if item.body is not None}
    found: dict[tuple[str, str], LaunchSite] = {}
    for item in source.of_kind(Kind.HOST):
        if item.body is None:
            continue
        for at, token in enumerate(item.tokens):
            callee = item.tokens[_callee(item.tokens, at)] if token.text == "<<<" else None
            if callee is not None and callee.text in kernels:
                line = source.cpp.place(token.start)[0]
                found.setdefault((item.name, callee.text), LaunchSite(item, kernels[callee.text], line, at))
    return list(found.values())


def isolate_launch(source: Source, site: LaunchSite, type_: str = TYPES[0]) -> tuple[Source, str]:
    """The source with the host function replaced by one that makes this launch only, and that function's name.

    `type_` is used for template types that nothing determines.
    """
    name = f"launch_of_{site.kernel.name}"
    text = _Cut(source, site, type_).text(name)
    above = site.line - source.text.count("\n", 0, site.host.code_start) - 1  # keeps line numbers
    head, _, launch = text.rpartition("\n")
    lines = source.text.count("\n", site.host.code_start, site.host.end)
    made = f"{head}{chr(10) * above}{launch}{chr(10) * max(lines - above, 0)}"
    cut = parsed(source.name, source.text[: site.host.code_start] + made + source.text[site.host.end :])
    return replace(cut, places=source.places), name


def _callee(tokens: Sequence[CppToken], at: int) -> int:
    """The index of the kernel's name before `<<<`."""
    index, depth = at - 1, 0
    while index > 0 and (tokens[index].text == ">" or depth):
        depth += {">": 1, "<": -1}.get(tokens[index].text, 0)
        index -= 1
    return index


def _split(tokens: Sequence[CppToken], most: int) -> list[list[CppToken]]:
    """Split expressions at commas, reading `<` as a comparison unless that gives more than `most`."""
    parts = split_declarators(tokens)
    return parts if len(parts) <= most else split_commas(tokens)


@dataclass
class _Cut:
    source: Source
    site: LaunchSite
    filled: str
    taken: dict[str, str] = field(default_factory=dict)  # parameter name -> declaration
    pointers: dict[str, str] = field(default_factory=dict)  # passed pointer expression -> parameter name
    kept: dict[str, Definition] = field(default_factory=dict)  # copied definitions
    types: dict[str, str] = field(default_factory=dict)  # aliases for types that a dispatch or a template would choose
    constants: dict[str, str] = field(default_factory=dict)  # definitions of the host function's template arguments
    renamed: dict[str, str] = field(default_factory=dict)  # macros that became parameters

    def __post_init__(self) -> None:
        tokens, self.begin = self.site.host.tokens, _callee(self.site.host.tokens, self.site.at)
        self.local, self.changed = definitions(tokens, self.begin)
        self.host_parameters = {parameter_name(part): part for part in parameters(self.site.host)}
        self.host_template = {part[-1].text: part for part in template_parameters(self.site.host) if part}
        self.globals = {item.name for item in self.source.items if item.name}
        self.macros = {i.name: i.tokens[3:] for i in self.source.of_kind(Kind.MACRO)}
        device = [i for i in self.source.items if i.kind is not Kind.HOST]
        reached = self.source.reachable([self.site.kernel.name], device)
        self.device_names = {name for item in reached for name in item.mentions}
        self.aliases = {
            i.name for i in self.source.items if i.name and i.tokens[0].text in ("using", "typedef", "enum")
        }
        self.place = f"{self.source.at(self.site.line)}: the launch of {self.site.kernel.name}"

    def text(self, name: str) -> str:
        tokens, at = self.site.host.tokens, self.site.at
        callee, scope = tokens[self.begin : at], self.begin
        while scope > 1 and tokens[scope - 1].text == "::" and tokens[scope - 2].is_identifier:
            scope -= 2
        close = next(
            i for i in range(at + 1, len(tokens) - 3) if [t.text for t in tokens[i : i + 4]] == [">", ">", ">", "("]
        )
        configuration = _split(tokens[at + 1 : close], 4)[:3]
        declared = parameters(self.site.kernel)
        arguments = _split(tokens[close + 4 : closing(tokens, close + 3, "()[]{}")], len(declared))
        if len(arguments) > len(declared):
            raise ImportProblem(f"{self.place} passes more arguments than the kernel has parameters")
        passed = {t.text for part in arguments for t in part}
        # Numbers that choose a template instance or the block size stay constants.
        self.fixed = self._behind(callee) | (self._behind(configuration[1]) - passed)
        template = "".join(token.text for token in tokens[scope : self.begin]) + self._template(callee)
        made = [self._argument(part, declared[i], i) for i, part in enumerate(arguments)]
        shape = [self._expression(part, lift=True) for part in configuration]
        lines = [f"using {alias} = {type_};" for alias, type_ in self.types.items()]
        lines += self.constants.values()
        lines += [one.text for one in sorted(self.kept.values(), key=lambda one: one.order)]
        head = f"void {name}({', '.join(self.taken.values())}) {{ {''.join(f'{line} ' for line in lines)}"
        return f"{head}\n{template}<<<{', '.join(shape)}>>>({', '.join(made)}); }}"

    def _template(self, callee: Sequence[CppToken]) -> str:
        wanted = [part for part in template_parameters(self.site.kernel) if "=" not in [t.text for t in part]]
        if len(callee) == 1:
            if not all(part[0].text in ("typename", "class") for part in wanted):
                raise ImportProblem(f"{self.place} does not name its non-type template arguments; name them")
            return callee[0].text + (f"<{', '.join(self.filled for _ in wanted)}>" if wanted else "")
        for token in callee[2:-1]:
            if token.is_identifier and token.text not in _KNOWN and not self._resolves(token.text, fixed=True):
                self.types[token.text] = self.filled
        return spelled(callee)

    def _argument(self, part: Sequence[CppToken], declared: Sequence[CppToken], position: int) -> str:
        wished = parameter_name(declared) or f"a{position}"
        if any(t.text in ("*", "[") for t in declared):
            text = spelled(part)
            if text in ("NULL", "nullptr", "0"):
                return text
            if text not in self.pointers:
                self.pointers[text] = self._new(wished, "tw::Bare")
            return self.pointers[text]
        inside = fields(self.source, declared)
        if inside:
            return self._struct(part, declared, inside, wished)
        type_ = self._number_type(declared, wished)
        return self._expression(part, lift=False) if self._reach(part) else self._new(wished, type_)

    def _struct(
        self, part: Sequence[CppToken], declared: Sequence[CppToken], inside: Sequence[Field], name: str
    ) -> str:
        """A struct expression such as `dim3(blocks)` if it can be computed, else one built from parameters."""
        with suppress(ImportProblem):
            if self._reach(part):
                return self._expression(part, lift=False)
        made = [(one, self._new(f"{name}_{one.name}", "tw::Bare" if one.is_pointer else one.type_)) for one in inside]
        lines = "".join(f"tw_made.{one.name} = {given}; " for one, given in made)
        return f"[&] {{ {type_of(declared)} tw_made; {lines}return tw_made; }}()"

    def _number_type(self, declared: Sequence[CppToken], name: str) -> str:
        words = [t.text for t in declared if t.text not in _QUALIFIERS and t.text != name]
        template = {part[-1].text for part in template_parameters(self.site.kernel) if part[0].text != "int"}
        if set(words) <= _NUMBERS:
            return " ".join(words)
        if len(words) == 1 and words[0] in template:
            return self.filled
        if len(words) == 1 and words[0] in self.aliases:
            return words[0]
        raise ImportProblem(f"{self.place} passes {name}, a `{' '.join(words)}`; kernels take pointers and numbers")

    def _new(self, wished: str, type_: str) -> str:
        name, suffix = wished, 2
        while name in self.taken or name in self.kept or name in self.types:
            name, suffix = f"{wished}_{suffix}", suffix + 1
        self.taken[name] = f"{type_} {name}"
        return name

    def _reach(self, tokens: Sequence[CppToken]) -> bool:
        """Make every name in an expression available; on failure nothing changes and the answer is False."""
        before = (self.taken.copy(), self.kept.copy(), self.types.copy(), self.renamed.copy())
        reached = False
        try:
            reached = self._takes_all(tokens)
        finally:
            if not reached:
                self.taken, self.kept, self.types, self.renamed = before
        return reached

    def _takes_all(self, tokens: Sequence[CppToken]) -> bool:
        for index, token in enumerate(tokens):
            if not token.is_identifier or (index and tokens[index - 1].text in (".", "->", "::")):
                continue
            follows = tokens[index + 1].text if index + 1 < len(tokens) else ""
            if token.text in _KNOWN or (follows == "::" and token.text == "std"):
                continue
            is_dim3 = token.text in self.local and self.local[token.text].type_ == "dim3"
            is_member = follows in (".", "->") and not is_dim3
            if is_member or not self._resolves(token.text):
                return False
        return True

    def _resolves(self, name: str, fixed: bool = False) -> bool:
        """Make a name available in the function, if possible."""
        if any(name in known for known in (self.taken, self.kept, self.types, self.constants, self.renamed)):
            return True
        if name in self.local:
            return self._define(self.local[name], fixed)
        if name in self.host_template:
            return self._instance(name)
        if name in self.host_parameters:
            words = [t.text for t in self.host_parameters[name][:-1] if t.text not in _QUALIFIERS]
            if not set(words) <= _NUMBERS or fixed:
                return False
            self.taken[name] = f"{' '.join(words)} {name}"
            return True
        body = self.macros.get(name, ())
        is_number = bool(body) and all(t.kind == "number" or t.text in "()*<+" for t in body)
        # A number that a `#define` gives to host code only is a size that the author chose.
        if is_number and name not in self.fixed and name not in self.device_names:
            self.renamed[name] = self._new(name.lower(), "int")
            return True
        return name in self.globals

    def _behind(self, tokens: Sequence[CppToken]) -> set[str]:
        """The names that an expression depends on."""

        def named(some: Sequence[CppToken]) -> list[str]:
            return [token.text for token in some if token.is_identifier]

        return reached(named(tokens), lambda name: named(self.local[name].value) if name in self.local else [])

    def _instance(self, name: str) -> bool:
        part = [t.text for t in self.host_template[name]]
        if part[0] not in ("typename", "class"):
            if (chosen := self._chosen(name)) is None:
                raise ImportProblem(f"{self.place} needs {name}, a template argument of {self.site.host.name}")
            self.constants[name] = f"constexpr {' '.join(part[:-1])} {name} = {chosen};"
            return True
        self.types[name] = self.filled
        return True

    def _chosen(self, name: str) -> str | None:
        """The value of a template parameter in the first instantiation or call of the host function."""
        position = list(self.host_template).index(name)
        asked = self.source.instances.get(self.site.host.name, ())
        if position < len(asked):
            return asked[position]
        for item in self.source.of_kind(Kind.HOST, Kind.MACRO):
            texts = [token.text for token in item.tokens]
            for at in range(len(texts) - 1):
                if texts[at : at + 2] == [self.site.host.name, "<"] and ">" in texts[at:]:
                    parts = split_commas(item.tokens[at + 2 : texts.index(">", at)])
                    given = parts[position][0] if position < len(parts) and len(parts[position]) == 1 else None
                    value = self._macro_argument(item, given.text) or given if given is not None else None
                    if value is not None and (value.kind == "number" or value.text in ("true", "false")):
                        return value.text
        return None

    def _macro_argument(self, macro: Item, name: str) -> CppToken | None:
        """The argument for one parameter in the first use of a macro."""
        texts = [token.text for token in macro.tokens]
        names = texts[4 : texts.index(")")] if macro.kind is Kind.MACRO and texts[3:4] == ["("] else []
        if name not in names:
            return None
        for item in self.source.of_kind(Kind.HOST):
            for at in range(len(item.tokens) - 1):
                if [token.text for token in item.tokens[at : at + 2]] == [macro.name, "("]:
                    parts = split_commas(item.tokens[at + 2 : closing(item.tokens, at + 1, "()[]{}")])
                    place = names[: names.index(name)].count(",")
                    return parts[place][0] if place < len(parts) and len(parts[place]) == 1 else None
        return None

    def _define(self, one: Definition, fixed: bool) -> bool:
        is_number = set(one.type_.split()) <= _NUMBERS
        is_size = one.is_literal and one.name not in self.fixed and is_number
        # The definition is stale if a name in it was changed afterwards.
        is_stale = one.is_changed or any(self.changed.get(token.text, -1) > one.order for token in one.value)
        if one.is_using or (not is_stale and not is_size and (fixed or self._reach(one.value) or not is_number)):
            if not one.is_using and not is_number and one.type_ != "dim3":
                return False
            text = one.prefix + self._expression(one.value, lift=True) + one.suffix
            self.kept[one.name] = Definition(**{**one.__dict__, "text": text})
            return True
        if not is_number:
            raise ImportProblem(f"{self.place} depends on {one.name}, which a branch or a call sets")
        type_ = " ".join(w for w in one.type_.split() if w not in _QUALIFIERS)
        self.taken[one.name] = f"{'long long' if type_ == 'auto' else type_} {one.name}"
        return True

    def _expression(self, tokens: Sequence[CppToken], lift: bool) -> str:
        """The text of an expression. With `lift`, `x.size(0)` and the like become parameters."""
        made: list[str] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            end = _end_of_chain(tokens, index)
            is_member = index > 0 and tokens[index - 1].text in (".", "->", "::")
            if lift and token.is_identifier and not is_member and not self._reach(tokens[index:end]):
                names = [t.text for t in tokens[index:end] if t.is_identifier or t.text.isdigit()]
                if not all(n.isidentifier() or n.isdigit() for n in names):
                    raise ImportProblem(
                        f"{self.place} needs `{spelled(tokens[index:end])}`, which cannot be computed here"
                    )
                name = "_".join(names)
                if name not in self.taken:
                    self._new(name, "long long")
                made.append(name)
                index = end
                continue
            made.append(self.renamed.get(token.text, token.text))
            index += 1
        return " ".join(made)


def _end_of_chain(tokens: Sequence[CppToken], index: int) -> int:
    """The index after `a.b(c)[d]->e` that begins here."""
    end = index + 1
    while end < len(tokens):
        text = tokens[end].text
        if text in (".", "->", "::") and end + 1 < len(tokens):
            end += 2
        elif text in ("(", "[") and end > index + 1:
            end = closing(tokens, end, "()[]{}") + 1
        else:
            break
    return end
