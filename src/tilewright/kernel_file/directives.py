"""The parser of plan directives: tokens of one statement in, directives out. `static_checks` checks their meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeVar

from tilewright.kernel_file import syntax, words
from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token
from tilewright.kernel_file.problems import Autofix, Code
from tilewright.kernel_file.syntax import BufferDirective, Directive, Expr, LaunchDirective, Op, Parameter, Span
from tilewright.records import BufferRole, Clearing, ScalarType

Defined = TypeVar("Defined", bound=syntax.Definition)
Default = int | float | bool | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | None


class StatementParser(ExpressionParser):
    """Reads the directive that starts at the first token."""

    def op(self) -> Op:
        first = self.advance()
        name = self.name("the op's name")
        self.expect("(")
        parameters = self.sequence(self._parameter, ")")
        results = self.comma_separated(lambda: self.name("a result's name").text) if self.accept("->") else ()
        self.finish()
        last = max((token for token in self.tokens if token.line == first.line), key=lambda token: token.end_column)
        extent = Span(first.line, first.column, last.end_column - first.column)  # on the first line
        return Op(name.text, parameters, results, extent)

    def version(self) -> None:
        self.advance()
        if self.token.text != "1":
            self.fail_at(self.token, Code.VERSION, f"version {self.token.text or '?'}", "write `version 1`")
        self.advance()
        self.finish()

    def directives(self) -> tuple[Directive, ...]:
        """Any directive but `version` and `op`."""
        word = self.advance().text
        read: dict[str, Callable[[], tuple[Directive, ...]]] = {
            "out": lambda: (self._buffer(BufferRole.OUT),),
            "scratch": lambda: (self._buffer(BufferRole.SCRATCH),),
            "let": lambda: self.comma_separated(lambda: self._definition(syntax.Let)),
            "const": lambda: self.comma_separated(lambda: self._definition(syntax.Const)),
            "need": lambda: (syntax.Need(self.expression(), first.at),),
            "tune": lambda: (self._tune(),),
            "accept": lambda: (self._accept(),),
            "lead": lambda: (syntax.Lead(self.comma_separated(self._rank), first.at),),
            "map": lambda: (self._map(),),
            "library": lambda: (self._library(),),
            "launch": lambda: (self._launch(),),
        }
        first = self.token
        result = read[word]()
        self.finish()
        return result

    def finish(self) -> None:
        if self.token.kind == "end":
            return
        found = f"found {self.token} after the directive"
        remedy = "expected the end of the line"
        if self.token.text == "=":
            remedy = "to compare, write `==`"
        elif self.token.text in (")", "]", ">>>"):
            remedy = f"nothing is open that `{self.token.text}` could close"
        self.fail_at(self.token, Code.SYNTAX, found, remedy)

    # -- op --

    def _parameter(self) -> Parameter:
        name = self.name("a parameter's name")
        if not self.accept(":"):
            in_place = self.accept("!") is not None
            optional = not in_place and self.accept("?") is not None
            if self.at("="):
                self.fail("`,` or `)`", "; a tensor that may be absent is written `x?`")
            return Parameter(name.text, None, name.at, in_place=in_place, optional=optional)
        kind = self.name("int, float or bool")
        if kind.text not in words.SCALAR_TYPES:
            self._fail_parameter_type(name, kind)
        scalar = words.SCALAR_TYPES[kind.text]
        is_list, length = self._list_marker()
        optional = self.accept("?") is not None
        has_default = self.accept("=") is not None
        default: Default = None
        if has_default:
            default = self._default(scalar, is_list, length, optional)
        return Parameter(name.text, scalar, name.at, False, optional, is_list, length, has_default, default)

    def _fail_parameter_type(self, name: Token, kind: Token) -> NoReturn:
        remedy = "a scalar is int, float or bool, or a list such as int[2]; a tensor has no type: write its name alone"
        meant = name.text if kind.text in ("Tensor", "tensor") else None
        autofix = Autofix.between(name.at, kind.at, meant)
        self.fail_at(kind, Code.SYNTAX, f"found {kind} as a parameter's type", remedy, autofix)

    def _list_marker(self) -> tuple[bool, int | None]:
        if not self.accept("["):
            return False, None
        length: int | None = None
        if self.token.kind == "int":
            value = self.number().value
            assert isinstance(value, int)
            length = value
        self.expect("]")
        return True, length

    def _default(self, scalar: ScalarType, is_list: bool, length: int | None, optional: bool) -> Default:
        token = self.token
        if self.at("none", "None"):
            self.advance()
            if not optional:
                found = "`none` as default of a parameter that is not optional"
                self.fail_at(token, Code.TYPE, found, "add `?` to its type")
            return None
        if not is_list:
            return self._scalar_default(scalar)
        if not self.accept("["):
            self.fail("a list such as [1, 1]")
        items = self.sequence(lambda: self._scalar_default(scalar), "]")
        if length is not None and len(items) != length:
            found = f"a default of {len(items)} for a list of {length}"
            self.fail_at(token, Code.TYPE, found, f"write {length} values")
        return items

    def _scalar_default(self, scalar: ScalarType) -> int | float | bool:
        token = self.token
        value = self._literal("a literal")
        if scalar is ScalarType.FLOAT and type(value) is int:
            return float(value)
        expected = {ScalarType.INT: int, ScalarType.FLOAT: float, ScalarType.BOOL: bool}[scalar]
        if type(value) is not expected:
            kind = f"{'an' if scalar is ScalarType.INT else 'a'} {scalar.value}"
            found = f"the default {token.text} of {kind} parameter"
            self.fail_at(token, Code.TYPE, found, f"write {kind} literal")
        return value

    def _literal(self, what: str) -> int | float | bool:
        """A number, perhaps negative, or true or false."""
        if self.at("true", "True", "false", "False"):
            return self.advance().text in ("true", "True")
        negative = self.accept("-") is not None
        if self.token.kind not in ("int", "float"):
            self.fail(what)
        value = self.number().value
        assert isinstance(value, (int, float))
        return -value if negative else value

    # -- definitions --

    def _buffer(self, role: BufferRole) -> BufferDirective:
        name = self.name(f"the {role.value} buffer's name")
        self.expect(":")
        dtype = self._buffer_dtype()
        bracket = self.expect("[")
        sizes = self.list_of(bracket).items
        stride: tuple[Expr, ...] | None = None
        clearing = Clearing.UNDEFINED
        if role is BufferRole.OUT and self.accept("stride"):
            self.nesting += 1
            self.expect("[")
            stride = self.one_or_more(self.expression, "]", "a stride for every dimension")
            self.nesting -= 1
        if self.accept("zeroed"):
            clearing = Clearing.ZEROED
        elif role is BufferRole.SCRATCH and self.accept("counter"):
            clearing = Clearing.COUNTER
        return BufferDirective(name.text, role, dtype, sizes, stride, clearing, name.at)

    def _buffer_dtype(self) -> Expr:
        token = self.name("a dtype such as f32, or x.dtype")
        if token.text in words.DTYPES:
            return syntax.Literal(words.DTYPES[token.text], token.at)
        base = syntax.Name(token.text, token.at)
        if not self.accept("."):
            return base
        attribute = self.name("`dtype`")
        return syntax.Attribute(base, attribute.text, attribute.at)

    def _definition(self, kind: type[Defined]) -> Defined:
        name = self.name("a name")
        self.expect("=")
        return kind(name.text, self.expression(), name.at)

    def _tune(self) -> syntax.Tune:
        name = self.name("the constant's name")
        self.expect("=")
        choices = [self._choice()]
        while self.at("|", ","):
            if self.at(","):
                autofix = Autofix.of(self.token.at, " |")
                self.fail_at(self.token, Code.SYNTAX, "found `,` between choices", "part choices with `|`", autofix)
            self.advance()
            choices.append(self._choice())
        integers = tuple(choice for choice in choices if type(choice) is int)
        flags = tuple(choice for choice in choices if type(choice) is bool)
        if len(integers) == len(choices):
            return syntax.Tune(name.text, integers, name.at)
        if len(flags) != len(choices):
            self.fail_at(name, Code.TYPE, f"the choices of {name.text} mix int and bool", "give them one type")
        return syntax.Tune(name.text, flags, name.at)

    def _choice(self) -> int | bool:
        token = self.token
        value = self._literal("an int or bool literal")
        if isinstance(value, float):
            found = f"the choice {token.text} is a float"
            self.fail_at(token, Code.TYPE, found, "tune choices are int or bool literals")
        return value

    def _accept(self) -> syntax.Accept:
        name = self.name("a tensor parameter")
        self.expect(":")
        flags = self.comma_separated(self._flag)
        return syntax.Accept(name.text, "strided" in flags, "unaligned" in flags, name.at)

    def _flag(self) -> str:
        flag = self.name("`strided` or `unaligned`")
        if flag.text not in words.ACCEPT_FLAGS:
            autofix = Autofix.of(flag.at, words.closest_name(flag.text, words.ACCEPT_FLAGS))
            self.fail_at(flag, Code.SYNTAX, f"found {flag}", "accept knows `strided` and `unaligned`", autofix)
        return flag.text

    def _rank(self) -> tuple[str, int]:
        name = self.name("a tensor parameter")
        self.expect(":")
        token = self.token
        value = self.number().value if token.kind == "int" else None
        if not isinstance(value, int) or value < 1:
            remedy = "write how many dimensions the plan sees of it, such as `lead x: 2`"
            self.fail_at(token, Code.SYNTAX, f"found {token} as a number of dimensions", remedy)
        return name.text, value

    def _map(self) -> syntax.MapDirective:
        name = self.name("the map's name")
        self.expect("=")
        self.expect("tiled", " (a map is written tiled(x, box=[...]))")
        self.expect("(")
        tensor = self.name("the tensor")
        options: list[tuple[str, Expr]] = []
        while self.accept(","):
            key = self.name("an option such as box=")
            if key.text not in words.MAP_OPTIONS:
                autofix = Autofix.of(key.at, words.closest_name(key.text, words.MAP_OPTIONS))
                known = f"known: {words.quoted(words.MAP_OPTIONS)}"
                self.fail_at(key, Code.SYNTAX, f"unknown option `{key.text}`", known, autofix)
            if any(key.text == earlier for earlier, _ in options):
                self.fail_at(key, Code.SYNTAX, f"`{key.text}` given twice", "give every option once")
            self.expect("=")
            options.append((key.text, self.expression()))
        if not self.at(")"):
            self.fail("`,` or `)`")
        closer = self.advance()
        if all(key != "box" for key, _ in options):
            self.fail_at(closer, Code.SYNTAX, "tiled() without box", "add box=[...], outermost dimension first")
        return syntax.MapDirective(name.text, tensor.text, tuple(options), name.at)

    # -- steps --

    def _library(self) -> syntax.LibraryDirective:
        target = self.name("the out or scratch buffer that takes the result")
        self.expect("=")
        function = self.name("an operator such as aten.mm").text
        while self.accept("."):
            function += "." + self.name("an operator's name").text
        self.expect("(")
        return syntax.LibraryDirective(target.text, function, self.sequence(self.expression, ")"), target.at)

    def _launch(self) -> LaunchDirective:
        first = self.name("the kernel's name")
        kernel = first.text
        while self.accept("::"):
            kernel += "::" + self.name("the kernel's name").text
        template: tuple[Expr, ...] | None = None
        if self.accept("<"):
            template = self.one_or_more(self.arithmetic, ">", "a template argument")
        self.expect("<<<")
        grid = self._dimensions()
        self.expect(",", " (a launch is written kernel<<<grid, block>>>(...))")
        block = self._dimensions()
        smem = self.arithmetic() if self.accept(",") else None
        if self.at(","):
            remedy = "grid, block and shared bytes only; the runner owns the stream"
            self.fail_at(self.token, Code.SYNTAX, "a fourth launch value", remedy)
        self.expect(">>>")
        self.expect("(")
        arguments = self.sequence(self.expression, ")")
        at = first.at._replace(length=len(kernel))
        return self._launch_attributes(LaunchDirective(kernel, template, grid, block, smem, arguments, at))

    def _dimensions(self) -> tuple[Expr, ...]:
        word = self.accept("dim3")
        return (self.arithmetic(),) if word is None else self._sizes(word, "a size")

    def _sizes(self, word: Token, what: str) -> tuple[Expr, ...]:
        self.expect("(")
        sizes = self.one_or_more(self.arithmetic, ")", what)
        if len(sizes) > 3:
            self.fail_at(word, Code.SYNTAX, f"{word.text} of {len(sizes)} sizes", f"{word.text} takes one to three")
        return sizes

    def _launch_attributes(self, launch: LaunchDirective) -> LaunchDirective:
        cluster, when = launch.cluster, launch.when
        seen: set[str] = set()
        while self.token.kind == "name":
            word = self.advance()
            if word.text not in words.LAUNCH_ATTRIBUTES:
                self._fail_attribute(word)
            if word.text in seen:
                self.fail_at(word, Code.SYNTAX, f"`{word.text}` given twice", "give every attribute once")
            seen.add(word.text)
            if word.text == "cluster":
                cluster = self._sizes(word, "a cluster size")
            elif word.text == "when":
                when = self.expression()
        return replace(launch, cluster=cluster, cooperative="cooperative" in seen, pdl="pdl" in seen, when=when)

    def _fail_attribute(self, word: Token) -> NoReturn:
        autofix = Autofix.of(word.at, words.closest_name(word.text, words.LAUNCH_ATTRIBUTES))
        known = "after the `)` stand only cluster(...), cooperative, pdl, when <condition>"
        self.fail_at(word, Code.SYNTAX, f"unknown launch attribute `{word.text}`", known, autofix)
