"""The kernel file: parse and check it, evaluate its plan at concrete shapes, bind it to a build, choose among files."""

from tilewright.kernel_file.bind import bind, pack_late, settle
from tilewright.kernel_file.calls import Arguments, ArgumentValue, CallError, Signature, normalise_call
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
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.printer import print_plan
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
    "compare_out",
    "evaluate",
    "normalise_call",
    "out_specs",
    "pack_late",
    "parse",
    "print_plan",
    "settle",
    "try_evaluate",
    "tuned_path",
]
