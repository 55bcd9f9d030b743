"""Translates a kernel file's launch plan to a C++ function: `bool file_N(call, device, choice, plan, refusal)`.

The function does what `kernel_file.evaluate` does for one choice of the tuned constants: layouts, lines, then steps. It
returns false with a refusal, or throws `StepError` for an error in a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.exports.cpp_expressions import CppName, cpp_comment, cpp_name, cpp_string, expression
from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import KernelFile, Parameter, print_op, syntax
from tilewright.kernel_file.compiled_plan import BufferLine, DefinitionLine, LaunchLine, LibraryLine, NeedLine, TuneLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.expression_values import TypeKind
from tilewright.kernel_file.printer import print_expression
from tilewright.kernel_file.syntax import Const, Op
from tilewright.records import BufferRole, Clearing, ScalarType

SCALARS = {ScalarType.INT: "int64_t", ScalarType.FLOAT: "double", ScalarType.BOOL: "bool"}


def scalar_cpp(parameter: Parameter) -> str:
    """The C++ type of a scalar parameter in a call."""
    assert parameter.scalar is not None
    text = SCALARS[parameter.scalar]
    if parameter.is_list:
        text = f"List<{text}>"
    return f"std::optional<{text}>" if parameter.optional else text


def call_struct(op: Op) -> str:
    """The C++ struct `Call`, and the function that fills it from a reader of arguments."""
    lines = ["struct Call {", f"    Tensor tensors[{max(len(op.tensors), 1)}];"]
    lines += [f"    {scalar_cpp(one)} {cpp_name(one.name)}{{}};" for one in op.numbers]
    lines += ["};", "", "template <class Reader> void read_call(Reader &reader, Call &call) {"]
    slot = 0
    for position, one in enumerate(op.parameters):
        if one.scalar is None:
            optional = "true" if one.optional else "false"
            lines.append(f"    reader.tensor({position}, call.tensors[{slot}], {slot}, {optional});")
            slot += 1
        else:
            length = -1 if one.length is None else one.length
            lines.append(f"    reader.number({position}, call.{cpp_name(one.name)}, {length});")
    return "\n".join([*lines, "}", ""])


def file_function(file: KernelFile, number: int) -> str:
    """The C++ function of one kernel file."""
    return _FileWriter(file, number).text()


def check_exportable(file: KernelFile) -> None:
    """Raise `NotExportable` for a plan with steps that have no C++ translation."""
    for step in file.compiled.steps:
        line = step.directive.at.line
        if isinstance(step, LibraryLine):
            raise NotExportable(
                f"{file.name}: line {line} is a library step ({step.directive.function}), which cannot be "
                "exported; use tilewright.load, or a file that launches kernels only"
            )
        for argument in step.arguments:
            if argument.type.kind is TypeKind.MAP and not isinstance(argument.expression, syntax.Name):
                raise NotExportable(
                    f"{file.name}: line {line} chooses between maps, which cannot be exported; "
                    "write two launches with `when`"
                )


class _FileWriter:
    """Writes one file's function, in the order of evaluation."""

    def __init__(self, file: KernelFile, number: int) -> None:
        self.file = file
        self.number = number
        self.plan = file.compiled
        self.names: dict[str, CppName] = {}
        self.slots: dict[str, int] = {}
        self.deferred: list[str] = []  # consts and buffers, in written order

    def text(self) -> str:
        # Leading dimensions are merged in a copy of the call.
        copied = [] if self.plan.lead is None else ["    Call call = given_call;", "    Leading leading;"]
        body = [*copied, *self._parameters(), "    int line = 0;", "    try {", *self._lead()]
        body += [
            *self._layouts(),
            *self._lines(),
            *self._deferred_checks(),
            "        try {",
            *self._steps(),
        ]
        call = "given_call" if copied else "call"
        head = f"bool file_{self.number}(const Call &{call}, const Device &device, const int64_t *choice, Plan &plan, "
        return "\n".join(
            [
                cpp_comment(print_op(self.file.plan.op)),
                f"{head}Refusal &refusal) {{",
                f"    (void){call}, (void)device, (void)choice;",
                *body,
                "        } catch (const Fault &why) {",
                "            throw StepError{plan.file, line, why.found};",
                "        }",
                "    } catch (const Fault &why) {",
                "        refusal = Refusal{plan.file, line, why.found};",
                "        return false;",
                "    } catch (const NotCarried &why) {",
                "        refusal = Refusal{plan.file, line, why.found};",
                "        return false;",
                "    }",
                "    return true;",
                "}",
                "",
            ]
        )

    def _parameters(self) -> Iterator[str]:
        for one in self.file.plan.op.parameters:
            name = cpp_name(one.name)
            self.names[one.name] = CppName(name, one.optional)
            if one.scalar is None:
                slot = self.slots[one.name] = len(self.slots)
                yield f"    const Tensor &{name} = call.tensors[{slot}];"
            else:
                yield f"    const auto &{name} = call.{name};"
            yield f"    (void){name};"

    def _lead(self) -> Iterator[str]:
        lead = self.plan.lead
        if lead is not None:
            named = ", ".join(f"{{{self.slots[name]}, {cpp_string(name)}, {rank}}}" for name, rank in lead.ranks)
            yield f"        line = {lead.at.line};"
            yield f"        leading = take_leading(call, {{{named}}});"

    def _layouts(self) -> Iterator[str]:
        for one in self.file.plan.op.parameters:
            if one.scalar is not None:
                continue
            accept = self.plan.accepts.get(one.name)
            strided, unaligned = (accept.strided, accept.unaligned) if accept is not None else (False, False)
            flags = ", ".join("true" if flag else "false" for flag in (strided, unaligned, one.in_place))
            at = accept.at if accept is not None else one.at
            yield f"        line = {at.line};"
            yield f"        check_layout({cpp_name(one.name)}, {cpp_string(one.name)}, {flags});"

    def _lines(self) -> Iterator[str]:
        for line in self.plan.lines:
            directive = line.directive
            yield f"        line = {directive.at.line};"
            match line:
                case NeedLine(parts=parts):
                    yield from self._need(parts)
                case TuneLine(directive=tune, position=position):
                    is_bool = isinstance(tune.choices[0], bool)
                    value = f"choice[{position}]" + (" != 0" if is_bool else "")
                    yield f"        const {'bool' if is_bool else 'int64_t'} {self._plain(tune.name)} = {value};"
                    yield f"        (void){cpp_name(tune.name)};"
                case DefinitionLine(directive=Const(name=name), value=value):
                    text = self._text(value)
                    yield f"        const auto {self._defer(name)} = deferred(line, [&] {{ return {text}; }});"
                case DefinitionLine(value=value):
                    text = self._text(value)
                    yield f"        const auto {self._plain(line.directive.name)} = {text};"
                    yield f"        (void){cpp_name(line.directive.name)};"
                case BufferLine():
                    yield from self._buffer(line)

    def _need(self, parts: tuple[Analysed, ...]) -> Iterator[str]:
        for part in parts:
            shown = cpp_string(f"`{print_expression(part.expression)}` is false")
            yield f"        line = {part.start.line};"
            yield f"        if (!({self._text(part)})) return refusal = Refusal{{plan.file, line, {shown}}}, false;"

    def _buffer(self, line: BufferLine) -> Iterator[str]:
        sizes = f"spliced({', '.join(self._text(size) for size in line.sizes)})"
        parts = [self._text(line.dtype), sizes]
        if line.stride is not None:
            parts.append(f"spliced({', '.join(self._text(step) for step in line.stride)})")
        name = line.directive.name
        slot = self.slots[name] = len(self.slots)
        yield f"        const auto {self._defer(name)} = deferred(line, [&] {{"
        yield f"            Tensor made = buffer({', '.join(parts)});"
        yield f"            return made.slot = {slot}, made;"
        yield "        });"

    def _plain(self, name: str) -> str:
        self.names[name] = CppName(cpp_name(name))
        return cpp_name(name)

    def _defer(self, name: str) -> str:
        """The C++ name of a value that is evaluated when it is first read, and may fail only then."""
        self.names[name] = CppName(f"{cpp_name(name)}()")
        self.deferred.append(name)
        return cpp_name(name)

    def _text(self, value: Analysed) -> str:
        return expression(value.expression, self.names)

    def _deferred_checks(self) -> Iterator[str]:
        for name in self.deferred:
            yield f"        plan.check({cpp_name(name)});"
        for line in self.plan.lines:
            if isinstance(line, TuneLine) or (isinstance(line, DefinitionLine) and isinstance(line.directive, Const)):
                yield f"        plan.constant({self.names[line.directive.name].text});"

    def _steps(self) -> Iterator[str]:
        for line in self.plan.lines:
            if isinstance(line, BufferLine):
                directive = line.directive
                is_out = "true" if directive.role is BufferRole.OUT else "false"
                cleared = directive.clearing is not Clearing.UNDEFINED
                counter = "true" if directive.clearing is Clearing.COUNTER else "false"
                stated = "true" if line.stride is not None else "false"
                yield f"            line = {directive.at.line};"
                yield (
                    f"            plan.add_buffer({cpp_string(directive.name)}, {is_out}, "
                    f"Clearing::{'zeroed' if cleared else 'undefined'}, {counter}, "
                    f"{self.names[directive.name].text}, {stated});"
                )
                if self.plan.lead is not None and directive.role is BufferRole.OUT:
                    yield "            plan.lead_result(leading);"
        yield "            const size_t constants = plan.key.size();"
        yield "            bool follows = false;"
        yield from (f"            int map_{cpp_name(name)} = -1;" for name in self.plan.maps)
        for number, step in enumerate(self.plan.steps):
            assert isinstance(step, LaunchLine)
            yield from self._launch(step, number)
        yield "            (void)follows, (void)constants;"

    def _launch(self, line: LaunchLine, number: int) -> Iterator[str]:
        directive = line.directive
        condition = "true" if line.when is None else self._text(line.when)
        yield f"            line = {directive.at.line};"
        yield f"            if (const Dim grid = {condition} ? {self._dim(line.grid)} : Dim{{0}}; !grid.is_empty()) {{"
        cluster = "nullptr"
        if line.cluster is not None:
            yield f"                const Dim cluster = {self._dim(line.cluster)};"
            cluster = "&cluster"
        smem = "INT64_C(0)" if line.smem is None else self._text(line.smem)
        cooperative = "true" if directive.cooperative else "false"
        programmatic = "follows" if directive.pdl else "false"
        yield (
            f"                plan.launch(device, line, grid, {self._dim(line.block)}, {smem}, {cluster}, "
            f"{cooperative}, {programmatic});"
        )
        for argument in line.arguments:
            yield from self._argument(argument)
        for value in line.template or ():
            yield f"                plan.template_argument({self._text(value)});"
        yield f"                plan.finish_launch(device, {number}, constants);"
        yield "                follows = true;"
        yield "            } else {"
        yield "                follows = false;"
        yield "            }"

    def _dim(self, values: tuple[Analysed, ...]) -> str:
        return f"Dim{{{', '.join(self._text(value) for value in values)}}}"

    def _argument(self, argument: Analysed) -> Iterator[str]:
        node = argument.expression
        if argument.type.kind is TypeKind.MAP:
            assert isinstance(node, syntax.Name)
            yield from self._map(node.id)
            return
        yield f"                plan.argument({expression(node, self.names, absent_allowed=True)});"

    def _map(self, name: str) -> Iterator[str]:
        line = self.plan.maps[name]
        tensor = line.directive.tensor
        accept = self.plan.accepts.get(tensor)
        index = f"map_{cpp_name(name)}"
        yield f"                if ({index} < 0) {{"
        if accept is not None and accept.unaligned:
            yield f"                    fault({cpp_string(f'{name}: {tensor} is accepted unaligned')});"
        yield "                    MapOptions options;"
        for key, value in line.options:
            yield f"                    options.{key} = {self._text(value)};"
        text = self.names[tensor].text
        yield f"                    plan.maps.push_back(tensor_map({cpp_string(name)}, {text}, options));"
        yield f"                    {index} = int(plan.maps.size()) - 1;"
        yield "                }"
        yield f"                plan.map_argument({index});"
