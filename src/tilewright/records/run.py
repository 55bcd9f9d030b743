"""A run: a task, all attempts at its kernel, and the provenance of the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

from tilewright.records.json_form import formerly
from tilewright.records.lint import LintFinding
from tilewright.records.measurement import Measurement, Modelled, is_beyond_noise
from tilewright.records.task import Task
from tilewright.records.verdict import JudgedAnswer, Passed, Rejected, Unsupported, Verdict, label_says_emulated

# -- questions and replies --


class Role(str, Enum):
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    role: Role
    text: str


@dataclass(frozen=True)
class Question:
    """A question to a model. `system` is shared by many questions, so adapters request caching for it.

    `id` identifies the question in its run, such as `0003-1`; relays name files after it, replays find replies by it.
    """

    id: str
    system: str
    messages: tuple[Message, ...]
    max_output_tokens: int = 32_000  # thinking tokens included

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role is not Role.USER:
            raise ValueError("a question ends with a message of the user")


class StopReason(str, Enum):
    END = "end"
    LENGTH = "length"  # the reply was cut at the output limit
    REFUSED = "refused"


@dataclass(frozen=True)
class Usage:
    """Tokens of one reply. Cached tokens are counted apart from plain input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def all_input_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def tokens(self) -> int:
        return self.all_input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True)
class Cut:
    """Usage of streams that were cut off before the reply was complete, which are billed too. Partly estimated."""

    usage: Usage = field(default_factory=Usage)
    dollars: float | None = 0.0  # None: no price is known

    def __add__(self, other: Cut) -> Cut:
        dollars = None if self.dollars is None or other.dollars is None else self.dollars + other.dollars
        return Cut(self.usage + other.usage, dollars)

    @property
    def tokens(self) -> int:
        return self.usage.all_input_tokens + self.usage.output_tokens


@dataclass(frozen=True)
class Reply:
    """A model's reply. `usage` and `dollars` include `cut`; `dollars` is None if the price is unknown."""

    model: str  # "anthropic:claude-sonnet-5", as asked for
    text: str
    stop: StopReason
    usage: Usage = field(default_factory=Usage)
    dollars: float | None = None
    seconds: float = 0.0
    retries: int = 0
    cut: Cut = field(default_factory=Cut)
    by_person: bool = False  # or by an agent, through files: `seconds` is then waiting time

    def after(self, cut: Cut) -> Reply:
        """The reply with the usage of streams that were cut before it."""
        if not cut.tokens:
            return self
        dollars = None if self.dollars is None or cut.dollars is None else self.dollars + cut.dollars
        return replace(self, usage=self.usage + cut.usage, dollars=dollars, cut=self.cut + cut)


class NoReply(RuntimeError):
    """No reply could be obtained; `cut` is what was spent."""

    cut = Cut()


MEASURED_NOISE = 0.01
MODELLED_NOISE = 0.04  # resolution of the model
NARROWER_GAIN = 0.12  # modelled gain required of a file that takes fewer sizes
USUAL_BASELINES = ("eager", "compile")
UNSTATED = "NOASSERTION"  # SPDX's name for an unstated licence


class Stage(str, Enum):
    DRAFT = "draft"
    REPAIR_BUILD = "repair-build"
    REPAIR_CRASH = "repair-crash"
    REPAIR_WRONG = "repair-wrong"
    STRUCTURE = "structure"
    PROFILED = "profiled"

    @property
    def is_repair(self) -> bool:
        return self in (Stage.REPAIR_BUILD, Stage.REPAIR_CRASH, Stage.REPAIR_WRONG)


@dataclass(frozen=True)
class Budget:
    """The limits of a run. Reaching one ends it: seconds at once, the others after the current attempt."""

    attempts: int = 12
    tokens: int = 200_000  # in and out together
    dollars: float = 2.0
    seconds: float = 1200.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.tokens < 1 or not self.dollars >= 0 or not self.seconds > 0:
            raise ValueError("a budget has at least one attempt and one token, and positive dollars and seconds")


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("skill",)

    author: str  # "playbook", "anthropic:claude-sonnet-5", "relay:DIR"
    budget: Budget = field(default_factory=Budget)
    repair_patience: int = 4  # consecutive repairs of a candidate before it is dropped
    structure_patience: int = 2  # structural steps without gain before profiling starts
    profiled_patience: int = 2  # profiled steps without gain before the run ends
    good_enough: float = 0.85  # fraction of the roofline at which the run ends
    stop_at_bound: bool = True  # end when the modelled time is at its minimum
    noise: float = MEASURED_NOISE  # minimum gain for a step or another choice of constants
    candidates: int = 1  # replies asked for per step
    tune_combinations: int = 24  # constant sets tried after a step that passed
    against: str = ""  # "module:function", a further baseline
    baselines: tuple[str, ...] = USUAL_BASELINES  # timed beside the kernel, by the names of `--baselines`
    start: str = ""  # text of the kernel file to begin with
    base_url: str = ""  # of the model's server, where it is not the provider's own; without user name or password
    spool: str = ""  # folder by which GPUs on other machines are reached
    output: str = ""  # absolute path at which the finished kernel is wanted too
    licence: str = ""  # of the finished kernel, as the person states it: an SPDX expression
    hints: tuple[tuple[int, str], ...] = ()  # (attempts made before, text of the hint)
    backward: bool = False  # a run for the gradients follows
    skill: str = ""  # text of a skill for every question


@formerly(derived={"emulated": label_says_emulated})
@dataclass(frozen=True)
class Environment:
    """The software and device of a run."""

    tilewright: str
    python: str
    torch: str
    compiler: str
    device: str  # as people are told: "H200 (emulated)"
    platform: str
    emulated: bool  # no GPU took part: times are modelled


@dataclass(frozen=True)
class RefusedChoice:
    """A faster choice of a file's constants that failed full verification."""

    choice: tuple[tuple[str, int | bool], ...]
    verdict: Rejected | Unsupported


@dataclass(frozen=True)
class TuneResult:
    """The tuning of a file's constants: choices with times, and the winner."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("refused", "answer")

    tried: tuple[tuple[tuple[tuple[str, int | bool], ...], float], ...]  # (choice, time_us)
    choice: tuple[tuple[str, int | bool], ...]
    skipped: int = 0  # combinations beyond the limit
    failed: int = 0  # not built, or wrong
    refused: tuple[RefusedChoice, ...] = ()  # of `failed`, those that were judged, the fastest first
    answer: JudgedAnswer | None = None  # of the choice, where a GPU judged it


@dataclass(frozen=True)
class Attempt:
    """One candidate and its outcome. Its texts are stored in the run's folder."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("recipe", "notes", "unmeasured")

    number: int  # from 1
    step: int  # candidates of the same step share it
    stage: Stage
    parent: int | None  # the attempt whose file the author was given
    summary: str  # the author's own line on what it did
    kernel: str | None  # identity of the file; None where there was none
    verdict: Verdict
    measurement: Measurement | None = None
    tune: TuneResult | None = None
    usage: Usage = field(default_factory=Usage)
    dollars: float | None = 0.0  # None: no price is known
    replies: int = 0
    seconds: float = 0.0
    cut: Usage = field(default_factory=Usage)  # part of `usage` in streams that were cut, partly estimated
    recipe: str = ""  # `Proposal.recipe`
    notes: tuple[str, ...] = ()  # `Proposal.notes`
    unmeasured: str = ""  # why it has no time though it passed

    @property
    def passed(self) -> bool:
        return isinstance(self.verdict, Passed)

    @property
    def is_provisional(self) -> bool:
        """Whether it passed, but not all of it was verified."""
        return isinstance(self.verdict, Passed) and self.verdict.is_provisional

    @property
    def time_us(self) -> float | None:
        return self.measurement.time_us if self.measurement and self.passed else None

    def beats(self, other: Attempt, noise: float) -> bool:
        """Whether it is faster beyond the fraction `noise` and the scatter of measured times.

        A verified attempt beats any provisional one. A file that takes fewer sizes needs a larger modelled gain.
        """
        if self.passed and other.passed and self.is_provisional != other.is_provisional:
            return other.is_provisional
        if self.measurement is None or not self.passed:
            return other.time_us is None
        if other.measurement is None or not other.passed:
            return True
        modelled = isinstance(self.measurement, Modelled) or isinstance(other.measurement, Modelled)
        if modelled and self.is_narrower_than(other):
            noise = max(noise, NARROWER_GAIN)
        return is_beyond_noise(self.measurement, other.measurement, noise)

    def is_narrower_than(self, other: Attempt) -> bool:
        """Whether its file declines a size that the other's takes."""
        if not (isinstance(self.verdict, Passed) and isinstance(other.verdict, Passed)):
            return False
        return self.verdict.is_narrower_than(other.verdict)


@formerly(
    values={
        "within the wanted fraction of the roofline": "good-enough",
        "at what the least traffic takes in the model": "at-bound",
        "no step paid any more": "settled",
        "the budget of attempts is spent": "attempts",
        "the budget of tokens is spent": "tokens",
        "the budget of dollars is spent": "dollars",
        "the budget of seconds is spent": "seconds",
        "the author has nothing further to propose": "author-done",
        "several replies in a row could not be used": "unreadable",
    }
)
class Ending(str, Enum):
    """Why a run ended. The values are stored; `words` may change."""

    GOOD_ENOUGH = "good-enough"
    AT_BOUND = "at-bound"
    SETTLED = "settled"
    ATTEMPTS = "attempts"
    TOKENS = "tokens"
    DOLLARS = "dollars"
    SECONDS = "seconds"
    AUTHOR_DONE = "author-done"
    UNREADABLE = "unreadable"

    @property
    def words(self) -> str:
        """A description for users."""
        match self:
            case Ending.GOOD_ENOUGH:
                return "within the wanted fraction of the roofline"
            case Ending.AT_BOUND:
                return "as fast as the performance model allows: one launch at the bandwidth that kernels reach"
            case Ending.SETTLED:
                return "no step paid any more"
            case Ending.AUTHOR_DONE:
                return "the author has nothing further to propose"
            case Ending.UNREADABLE:
                return "several replies in a row could not be used"
            case _:
                return f"the budget of {self.value} is spent"


@dataclass(frozen=True)
class Run:
    """The state of a run. `ending` is None while it can continue."""

    id: str
    created: str  # ISO 8601, UTC
    task: Task
    settings: Settings
    environment: Environment
    attempts: tuple[Attempt, ...] = ()
    ending: Ending | None = None
    specifying: tuple[Reply, ...] = ()  # replies that turned words into the task
    cut_short: tuple[tuple[int, float], ...] = ()  # (attempt, seconds) of attempts ended by the time budget

    @property
    def best(self) -> Attempt | None:
        """The last passing attempt that beat the one before it. One without a time counts only while none has one."""
        best: Attempt | None = None
        for one in self.attempts:
            if self.takes(one, best):
                best = one
        return best

    def takes(self, attempt: Attempt, before: Attempt | None) -> bool:
        """Whether an attempt replaces `before`, the best so far."""
        return attempt.passed and (before is None or attempt.beats(before, self.settings.noise))

    @property
    def usage(self) -> Usage:
        before = sum((one.usage for one in self.specifying), Usage())
        return sum((one.usage for one in self.attempts), before)

    @property
    def cut(self) -> Usage:
        """The part of `usage` in streams that were cut."""
        before = sum((one.cut.usage for one in self.specifying), Usage())
        return sum((one.cut for one in self.attempts), before)

    @property
    def dollars(self) -> float | None:
        """None if the price of any reply is unknown."""
        prices = [*(one.dollars for one in self.specifying), *(one.dollars for one in self.attempts)]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.attempts) + sum(seconds for _, seconds in self.cut_short)

    @property
    def begun(self) -> int | None:
        """The number of the attempt that the time budget cut short; None if there is none."""
        number = len(self.attempts) + 1
        return number if any(number == one for one, _ in self.cut_short) else None

    @property
    def ending_words(self) -> str:
        """Why it ended; "" while it can continue."""
        if self.ending is Ending.SECONDS and self.begun is not None:
            return f"{self.ending.words}, so attempt {self.begun} was cut short, with what it had made kept"
        return self.ending.words if self.ending is not None else ""


@dataclass(frozen=True)
class Situation:
    """The information for an author about the next candidate. It is never stored."""

    task: Task
    stage: Stage
    number: int  # of the attempt it is asked for
    candidate: int = 0  # among those of the same step
    parent: Attempt | None = None  # the best so far
    parent_text: str = ""  # its kernel file, or the file to start from
    failing: Attempt | None = None  # in a repair: the candidate to fix
    failing_text: str = ""
    history: tuple[Attempt, ...] = ()
    evidence: str = ""  # of the profiler, in the last stage only
    hint: str = ""  # from the user
    emulated_only: bool = False  # there is no GPU: only what the emulator runs can be verified
    noise: float = 0.01  # `Settings.noise`
    skill: str = ""  # `Settings.skill`
    lint: tuple[LintFinding, ...] = ()  # of the file shown


@dataclass(frozen=True)
class Proposal:
    """An author's reply: a kernel file, or why there is none."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("notes",)

    text: str | None
    summary: str
    problem: str = ""  # why `text` is None
    passes: bool = False  # the author has nothing better; `summary` says why
    recipe: str = ""  # the author's identifier of the change; "" if unused
    notes: tuple[str, ...] = ()  # work that the file omits as algebraically redundant, a sentence each


@dataclass(frozen=True)
class Specification:
    """A reference and inputs that an author wrote for a request in words. It runs only once a person accepts it.

    `description` is the text of a `task.toml`: see docs/tasks.md.
    """

    reference: str
    description: str
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contribution:
    """The lines of a file from one attempt. Attempt 0 is the file to start from."""

    attempt: int
    stage: str
    author: str  # "playbook", "anthropic:claude-sonnet-5", "given"
    summary: str
    prompts: tuple[str, ...]  # SHA-256 of each stored question
    lines: tuple[tuple[int, int], ...]  # first and last, counted from 1


@dataclass(frozen=True)
class Provenance:
    """The record stored with a finished kernel, `softmax.cu.provenance.json`."""

    op: str
    kernel: str  # the file's identity
    task_hash: str
    run: str
    created: str  # of the run; ISO 8601, UTC
    tilewright: str
    licence: str  # an SPDX expression, or `UNSTATED`
    contributions: tuple[Contribution, ...]  # in the order of the steps, without those that have no lines left
    verified_on: tuple[str, ...]  # devices
    right_cases: int
    worst_error: float | None  # over the allowed error; None if no numbers were compared
    measurement: Measurement | None
    notes: tuple[str, ...] = ()
    degenerate: str = ""  # why the task is degenerate
    unjudged: tuple[
        str, ...
    ] = ()  # what runs in the task's own call and was not verified; the kernel then is not either
