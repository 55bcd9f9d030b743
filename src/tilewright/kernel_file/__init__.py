"""Kernel files: parsing, static checks, evaluation of launch plans, binding to builds, dispatch among files."""

from tilewright.kernel_file.bind import bind, pack_late, settle
from tilewright.kernel_file.calls import Arguments, ArgumentValue, CallError, Signature
from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.kernel_file.dispatch import (
    ConstantSets,
    Dispatcher,
    NoneApplies,
    Reason,
    Selected,
    Selection,
    TracedOut,
    traced_outs,
)
from tilewright.kernel_file.evaluate import (
    Evaluation,
    Refused,
    combinations,
    compare_out,
    evaluate,
    out_specs,
    try_evaluate,
)
from tilewright.kernel_file.op_line import compare_op, needs_of_task, op_of_task, parse_op
from tilewright.kernel_file.parser import apply_autofixes, autofix, parse
from tilewright.kernel_file.printer import print_op
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.kernel_file.search import Choice, ChoiceError
from tilewright.kernel_file.syntax import Op, Parameter
from tilewright.kernel_file.tuned import BadTunedRecord, NearChoice, TunedChoices, evaluate_tuned
from tilewright.kernel_file.words import contract
