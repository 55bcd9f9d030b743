"""`tilewright explain` on a small run: what a lesson holds, and that text stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.frontends.report.served import add, made, parsed, serving
from tests.store.records_for_store import ENVIRONMENT, PASSED, SETTINGS, TASK, attempt, modelled

from tilewright.frontends.report.document import (
    RESOURCES,
    Code,
    Document,
    Fold,
    Glossary,
    Link,
    Paragraph,
    Picture,
    Quote,
    Section,
    Source,
    Table,
)
from tilewright.frontends.report.emulated import Access, count_lines
from tilewright.frontends.report.lesson import roofline_words, same_longest, step_sections
from tilewright.frontends.report.pictures import (
    Roofline,
    roofline_picture,
)
from tilewright.frontends.report.rendering import markdown, whole_page
from tilewright.records import (
    LAUNCH_US,
    Modelled,
    ModelTerm,
    Rejected,
    Stage,
    TouchRecord,
    TuneResult,
)
from tilewright.records.verdict import Case, WrongValues
from tilewright.store import RunFolder, Store

GALLERY = Path(__file__).parents[3] / "gallery"
EVIL = "</pre></details><script>alert(1)</script> ```` | *bold* [a](javascript:x) \u202e"
KERNEL = """\
//! op      double_it(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! tune    SWAP = 0 | 1   # with 0 the barrier is of no use
//! launch  double_it<<<ceil_div(n, 64), 64>>>(x, y, n)
__global__ void double_it(const float* x, float* y, long long n) {
  __shared__ float held[64];
  long long i = blockIdx.x * 64LL + threadIdx.x;
  held[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  if (i < n) y[i] = 2.f * held[threadIdx.x] + 0.f * held[SWAP ? 63 - threadIdx.x : threadIdx.x];
}
"""


# The first launch does little, most of it in line 11; the second does nearly all, most of it in line 17.
TWO_LAUNCHES = """\
//! op      double_it(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! scratch first: f32[32]
//! launch  prepare<<<1, 32>>>(x, first, n)
//! launch  double_it<<<ceil_div(n, 64), 64>>>(x, first, y, n)
__global__ void prepare(const float* x, float* first, long long n) {
  float sum = 0.f;
  for (int i = 0; i < 2; ++i)
    sum += threadIdx.x + i < n ? x[threadIdx.x + i] * 0.5f + sum * 0.25f + sqrtf(sum) : 0.f;
  first[threadIdx.x] = sum;
}
__global__ void double_it(const float* x, const float* first, float* y, long long n) {
  long long i = blockIdx.x * 64LL + threadIdx.x;
  float sum = 0.f;
  for (int k = 0; k < 32; ++k) sum += first[(threadIdx.x + k) % 32];
  if (i < n) y[i] = 2.f * x[i] + 0.f * sum;
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(home: Path) -> RunFolder:
    """A wrong draft, a repair, a step that gained and one that did not."""
    run = Store(home).create_run(TASK, SETTINGS, ENVIRONMENT)
    wrong = replace(attempt(1, verdict=Rejected(WrongValues(Case({"n": 7}, 1), ()))), summary=f"each warp ... {EVIL}")
    mended = replace(attempt(2, 20.0), parent=None, stage=Stage.REPAIR_WRONG, tune=None)
    tune = TuneResult((((("SWAP", 0),), 13.0), ((("SWAP", 1),), 12.5)), (("SWAP", 1),))
    faster = replace(attempt(3, 12.5), parent=2, tune=tune)
    memory = replace(modelled(13.0), terms=(ModelTerm("latency", 13.0, "more waiting"),))
    slower = replace(attempt(4, measurement=memory), parent=3, verdict=PASSED, tune=None)
    for one, text in ((wrong, "// nothing\n"), (mended, "// less\n"), (faster, KERNEL), (slower, KERNEL + EVIL + "\n")):
        add(run, one, text)
    return run


def test_a_lesson_has_its_parts(home: Path, folder: RunFolder, tmp_path: Path) -> None:
    done = tilewright(home, "explain", folder.path.name, "-o", tmp_path / "lesson.md")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "lesson.md").read_text()
    picture = (tmp_path / "lesson_pictures" / "roofline.svg").read_text()
    assert re.findall(r"(\d+)% of what is possible", text) == re.findall(r">(\d+)% of the roofline<", picture)
    headings = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    assert headings == [
        "What this is",
        "What is computed",
        "How fast could it be?",
        "Reading CUDA",
        "How the finished kernel shares out the work",
        "How it came about, step by step",
        "Step 1: a first version (not kept)",
        "Step 2: mending wrong results (kept)",
        "Step 3: another structure (the best)",
        "Step 4: another structure (not kept)",
        "Where the time goes now",
        "Glossary",
    ]
    assert "What it changed in step 1: 1 lines new, 1 gone" in text  # a repair begins from what failed
    assert "1.60 times as fast as step 2" in text
    assert re.search(r"^\| \S*latency\S* \| 0.00 \| 13.0 \| more waiting \|$", text, re.MULTILINE)
    assert "Line 6 of the kernel file says so, with SWAP = 1 put in." in text
    assert "\n   7 | __global__ void double_it" in text
    assert "| `__syncthreads()` |" in text
    assert "| `asm(...)` |" not in text
    assert "costs more than it needs" not in text  # of none of its lines there is anything to say
    pictures = re.findall(r"\]\((lesson_pictures/[^)]*)\)", text)
    assert len(pictures) == 2
    assert "sectors move where" in text or "one sector of 32 bytes moves" in text
    assert all((tmp_path / one).read_text().startswith("<svg") for one in pictures)
    linked, explained = re.findall(r"\]\(#(term-[^)]*)\)", text), re.findall(r'<a id="(term-[^"]*)">', text)
    assert len(linked) == len(set(linked))
    assert set(linked) <= set(explained)


def test_lines_of_several_launches_are_ranked_by_the_whole(home: Path, tmp_path: Path) -> None:
    folder = Store(home).create_run(TASK, SETTINGS, ENVIRONMENT)
    best = replace(attempt(1, 12.5), tune=None)
    terms = count_lines(folder.load(), best, TWO_LAUNCHES).terms
    recorded = replace(modelled(12.5), terms=tuple(replace(one, detail="of the first launch") for one in terms))
    add(folder, replace(best, measurement=recorded), TWO_LAUNCHES)
    tilewright(home, "explain", folder.path.name, "-o", tmp_path / "lesson.md")
    text = (tmp_path / "lesson.md").read_text()
    assert re.search(r"^\| \S*starting.* \| 17 of them \|", text, re.MULTILINE)
    assert "runs 1 block of 32 threads, that is 1 [warp](#term-warp) of 32." in text
    assert "of the first launch" not in text  # the words of an older version
    table = text[text.index("The lines that do most") : text.index("The finished kernel file")]
    assert "of all launches together" in table
    shares = {int(line): int(share) for line, share in re.findall(r"^\| (\d+) \|.*\| (\d+)% \|", table, re.MULTILINE)}
    assert next(iter(shares)) == 17
    assert shares.get(11, 0) <= 5  # half of its own launch
    assert sum(shares.values()) <= 100 + len(shares)


def test_a_best_without_a_time_has_none_that_is_known(home: Path, tmp_path: Path) -> None:
    folder = made(home, attempt(1))
    tilewright(home, "explain", folder.path.name, "-o", tmp_path / "lesson.md")
    text = (tmp_path / "lesson.md").read_text()
    assert "of which the best passed, though it has no time: why is not on record." in text
    assert "and none was timed." in text
    assert "takes no time" not in text
    assert "That is not known: the emulator could not count what this kernel does." in text
    assert "its time is modelled" not in text


def test_memory_holds_a_kernel_up_only_where_it_takes_longest() -> None:
    found = Roofline("H200", 4800.0, (("fp16", 990.0),), 4e6, 8e4, 7.8, "modelled", 2.0)
    memory, launches = ModelTerm("device memory", 0.02, ""), ModelTerm("launches", 4.35, "")

    def words(*terms: ModelTerm, time_us: float = 7.8) -> str:
        return roofline_words("H200", replace(found, time_us=time_us), "0.05 MB read, 0.03 MB written", terms)

    assert "Here memory holds it up." in words(memory)
    assert "memory holds it up" not in words(launches, memory)
    assert "Here neither holds the kernel up: what takes longest is launches, 4.35 us." in words(launches, memory)
    assert "holds" not in words()
    assert "Here arithmetic holds it up." in words(ModelTerm("tensor cores", 9.0, ""))
    assert "neither" in words(ModelTerm("issue slots", 9.0, ""))  # of few operations for each byte
    assert "the 0.08 MB that are moved (0.05 MB read, 0.03 MB written)" in words()
    assert "reaches less than 1% of it" in words(time_us=1e4)
    assert ">less than 1% of the roofline<" in roofline_picture(replace(found, time_us=1e4))
    assert "reaches 26% of it" in words()
    assert ">26% of the roofline<" in roofline_picture(found)
    assert f"the least, {LAUNCH_US:g} us" in RESOURCES["launches"]


def test_steps_say_whole_sentences_other_constants_and_what_takes_longest() -> None:
    folder = RunFolder(GALLERY / "masked_softmax")
    run = folder.load()
    terms = {one.number: one.measurement.terms for one in run.attempts if isinstance(one.measurement, Modelled)}
    sections = tuple(step_sections(folder, run, Glossary(), terms))
    text = re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", markdown(Document("", sections, ()), None))
    assert "(each warp's own maximum, merged with its sum), no block-index division" in text
    assert "..." not in "".join(line for line in text.splitlines() if line.startswith(">"))
    assert "kept the file's first, WARPS = 2, GROUP = 2, because none was clearly better. Step 2 has WARPS = 1" in text
    assert text.count("due to that") == 3  # not of steps that have other constants altogether
    assert text.count("| device memory | 19.1 | 19.1 |") == 3
    assert same_longest(list(terms.values())) == terms[6][0]
    other = ModelTerm("latency", 99.0, "")
    assert same_longest([*terms.values(), (other,)]) is None
    assert same_longest([(other,), (replace(other, time_us=90.0),)]) is None


def test_hostile_text_stays_text() -> None:
    spans = ("- " + EVIL, Code(EVIL), Link("warp", "term-warp"))
    blocks = (
        Paragraph(spans),
        Quote((EVIL,)),
        Source(EVIL + "\n```\n", "cuda"),
        Picture("p", "<svg xmlns='x'></svg>", EVIL),
        Picture("q", "<svg xmlns='x'></svg>", spans),
        Table((EVIL,), ((EVIL,), (spans,))),
        Fold(EVIL, (Source(EVIL),)),
    )
    lesson = Document(EVIL, (Section(EVIL, blocks),), ())
    text = markdown(lesson, "")
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)  # fences hold the rest
    outside = re.sub(r"(`+)[^`].*?(?<!`)\1(?!`)", "", outside)
    assert "<script" not in outside
    assert "\u202e" not in text
    assert outside.count("<details>") == outside.count("</details>") == 1
    outside = re.sub("^<details>.*$", "", outside, flags=re.MULTILINE)  # HTML up to the next empty line: no marks there
    assert "](javascript" not in outside.replace("\\]", "")
    page = parsed(whole_page(lesson))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_a_request_in_numbers() -> None:
    def touch(step: int, size: int, writes: bool = False, lanes: int = 32) -> TouchRecord:
        offsets = tuple((lane, lane * step) for lane in range(lanes))
        return TouchRecord("k", 1, 7, "ld", "x", not writes, writes, size, offsets)

    dense, strided, same = (Access(touch(step, 4)) for step in (4, 64, 0))
    assert (dense.sectors, dense.fewest) == (4, 4)
    assert (strided.sectors, strided.fewest) == (32, 4)
    assert (same.sectors, same.fewest) == (1, 1)
    assert dense.words.endswith("4 sectors move where 4 could do: coalesced.")
    assert strided.words.endswith("not coalesced.")
    # one rule for all, whatever their number: at most half as many again
    assert Access(touch(4, 2, lanes=15)).words.endswith("2 sectors move where 1 could do: not coalesced.")
    shifted = replace(touch(16, 16), offsets=tuple((lane, lane * 16 + lane // 16 * 32 + 16) for lane in range(32)))
    assert Access(shifted).words.endswith("18 sectors move where 16 could do: coalesced.")
    assert Access(touch(4, 4, True, 5)).words.startswith("5 of the 32 lanes write 4 bytes of x")
    assert Access(touch(4, 4, True, 1)).words.startswith("One lane writes 4 bytes")


def test_only_terms_that_occur_are_explained_and_each_is_linked_once() -> None:
    glossary = Glossary()
    spans = [*glossary.linked("Warps wait at barriers; a warp's barrier, warps.")]
    assert [one.text for one in spans if isinstance(one, Link)] == ["barriers", "warp"]
    assert "".join(one if isinstance(one, str) else one.text for one in spans).endswith("a warp's barrier, warps.")
    terms = [one.term for one in glossary.entries()]
    assert {"warp", "barrier", "thread"} <= set(terms)  # thread: by the meaning of warp
    assert "tensor core" not in terms
    assert terms == sorted(terms, key=str.lower)


def test_what_cannot_be_explained(home: Path, folder: RunFolder, tmp_path: Path) -> None:
    empty = Store(home).create_run(TASK, SETTINGS, ENVIRONMENT)
    for arguments, said in (
        ((empty.path.name,), "no finished attempt"),
        ((folder.path.name, "-o", tmp_path / "lesson.pdf"), "ends in .md or .html"),
        ((folder.path.name, "-o", tmp_path / "none" / "lesson.md"), "no folder"),
        (("nothing-of-the-kind",), "nothing-of-the-kind"),
    ):
        done = tilewright(home, "explain", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert said in done.stderr


def test_a_run_whose_kernel_cannot_be_read_has_a_lesson_and_view_serves_it(home: Path) -> None:
    folder = made(home, replace(attempt(1, 20.0), summary=EVIL))
    with serving(home) as client:
        run = client.get(f"/runs/{folder.path.name}/index.html").page
        lesson = client.get(f"/runs/{folder.path.name}/lesson.html")
    assert "lesson.html" in run.links()
    assert lesson.status == 200
    assert "The emulator could not look at all of it" in lesson.page.text
    assert "<script>alert(1)</script>" in lesson.page.text
    assert all(one.get("src", "").endswith("view.js") for tag, one in lesson.page.tags if tag == "script")
    assert {link.lstrip("#") for link in lesson.page.links() if link[0] == "#"} <= {
        one["id"] for _, one in lesson.page.tags if "id" in one
    }


def test_a_best_kernel_without_a_time_is_not_said_to_take_none(home: Path, tmp_path: Path) -> None:
    folder = made(home, replace(attempt(1), unmeasured="at these sizes it takes too long"))
    done = tilewright(home, "explain", folder.id, "-o", tmp_path / "lesson.md")
    assert done.returncode == 0, done.stderr
    said = "the best passed, though it has no time: at these sizes it takes too long."
    assert said in (tmp_path / "lesson.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(one.parent.name for one in GALLERY.glob("*/run.json")))
def test_every_run_of_the_gallery_makes_a_page(name: str, home: Path, tmp_path: Path) -> None:
    done = tilewright(home, "explain", GALLERY / name, "-o", tmp_path / "lesson.html")
    assert done.returncode == 0, done.stderr
    page = parsed((tmp_path / "lesson.html").read_text())
    assert {"What is computed", "Exercises", "Glossary"} <= set(page.text.splitlines())
    anchors = {one["id"] for _, one in page.tags if "id" in one}
    assert {link.lstrip("#") for link in page.links()} <= anchors
