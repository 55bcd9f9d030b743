"""The kernel file: parse and check it, evaluate its plan at concrete shapes, bind it to a build, choose among files."""

from tilewright.kernel_file.bind import bind, pack_late, settle
from tilewright.kernel_file.calls import Arguments, ArgumentValue, CallError, Signature, normalise_call
from tilewright.kernel_file.contract import contract
from tilewright.kernel_file.dispatch import (
    ConstantSets,
    Dispatcher,
    NoneApplies,
    Reason,
    Selected,
    Selection,
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
from tilewright.kernel_file.inference import expression_type
from tilewright.kernel_file.mend import Mended, mend
from tilewright.kernel_file.op_line import compare_op, parse_op
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.printer import print_expression, print_op, print_plan
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Mend, Problem
from tilewright.kernel_file.search import Choice, ChoiceError
from tilewright.kernel_file.syntax import KernelFile, Op, Parameter, Plan
from tilewright.kernel_file.tuned import TunedChoice, TunedChoices, TunedTensor, tuned_path

__all__ = [
    "ArgumentValue",
    "Arguments",
    "CallError",
    "Choice",
    "ChoiceError",
    "Code",
    "ConstantSets",
    "Dispatcher",
    "DoesNotApply",
    "Evaluation",
    "KernelFile",
    "KernelFileError",
    "Mend",
    "Mended",
    "NoneApplies",
    "Op",
    "Parameter",
    "Plan",
    "Problem",
    "Reason",
    "Refused",
    "Selected",
    "Selection",
    "Signature",
    "TunedChoice",
    "TunedChoices",
    "TunedTensor",
    "bind",
    "combinations",
    "compare_op",
    "compare_out",
    "contract",
    "evaluate",
    "expression_type",
    "mend",
    "normalise_call",
    "out_specs",
    "pack_late",
    "parse",
    "parse_op",
    "print_expression",
    "print_op",
    "print_plan",
    "settle",
    "try_evaluate",
    "tuned_path",
]
