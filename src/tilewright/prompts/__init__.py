"""What a model is told and how its replies are read: template files, rendering, strict parsing. Asks nobody itself."""

from tilewright.prompts.history import history_text, measurement_text, standing_text, tune_text
from tilewright.prompts.question import base_of, correction_text, question_text, system_text
from tilewright.prompts.replies import KernelReply, ReplyProblem, read_reply, table_line
from tilewright.prompts.specify import read_specification, specify_correction_text, specify_texts
from tilewright.prompts.task_text import op_line, out_lines, task_text
from tilewright.prompts.verdict_text import verdict_text, verdict_words

__all__ = [
    "KernelReply",
    "ReplyProblem",
    "base_of",
    "correction_text",
    "history_text",
    "measurement_text",
    "op_line",
    "out_lines",
    "question_text",
    "read_reply",
    "read_specification",
    "specify_correction_text",
    "specify_texts",
    "standing_text",
    "system_text",
    "table_line",
    "task_text",
    "tune_text",
    "verdict_text",
    "verdict_words",
]
