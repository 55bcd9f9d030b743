"""The author, the device and the settings of a run, from command-line options or keywords. Nothing is spent here."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import urlsplit

from tilewright import records
from tilewright.authors import Author
from tilewright.authors.model_author import ModelAuthor
from tilewright.child.process import uninterrupted
from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.devices.cuda import DriverError, profiles
from tilewright.devices.protocol import Device
from tilewright.devices.spool import SpoolDevice
from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.measure.baselines import BASELINES
from tilewright.models import MissingKey, Price, RetryPolicy, default_model_name, open_model, providers
from tilewright.reference.spooled import SpoolReference
from tilewright.refine import Complete
from tilewright.store import Store
from tilewright.tasks.errors import BadArgument

PLAYBOOK = "playbook"
AGENT = "agent"  # `agent:NAME` writes through the tools for agents
SPOOL_SECONDS = 20.0  # to wait for a worker to register


# -- authors --


@dataclass(frozen=True)
class ChosenAuthor:
    name: str
    author: Author
    complete: Complete
    price: Price | None  # None if unknown

    @property
    def price_words(self) -> str:
        if self.name == PLAYBOOK:
            return "built in, costs nothing"
        if self.name.startswith("replay:"):
            return "a recording, costs nothing"
        if self.price is None:
            return "price unknown, so only attempts, tokens and seconds bound it"
        if not self.price.input and not self.price.output:
            return "costs nothing"
        return f"${self.price.input:g} in and ${self.price.output:g} out per million tokens"


def author_name(model: str | None, author: str | None, environ: Mapping[str, str]) -> str:
    """The author's name for the record, from the options and the keys that are set."""
    if author is not None and author != PLAYBOOK:
        raise BadArgument(f"--author {author}: the built-in author is called {PLAYBOOK}; name a model with --model")
    if author is not None and model is not None:
        raise BadArgument("--author and --model name two authors; drop one")
    if author is None and model is None:
        return default_model_name(environ) or PLAYBOOK
    if model is None:
        return PLAYBOOK
    provider, _, rest = model.partition(":")
    if provider not in providers() or not rest:
        raise BadArgument(f"--model {model}: write PROVIDER:NAME with one of {', '.join(providers())}")
    # A run may be resumed from another folder.
    if provider == "replay" and not Path(rest).expanduser().is_dir():
        return f"{provider}:{Store().open_run(rest).path.resolve()}"
    return f"{provider}:{Path(rest).expanduser().resolve()}" if providers()[provider].takes_path else model


def check_key(name: str, base_url: str, environ: Mapping[str, str]) -> None:
    """Raises `MissingKey` for a model whose key is not set, before anything is opened."""
    provider = providers().get(name.partition(":")[0])
    if provider is not None and provider.lacks_key(base_url, environ):
        raise MissingKey(f"{name} needs a key; set {provider.key} in the environment, or choose --author {PLAYBOOK}")


@contextmanager
def open_author(
    name: str, base_url: str, say: Callable[[str], None], seconds: float = math.inf
) -> Iterator[ChosenAuthor]:
    """Open the author of that name, or raise `ModelError`; a failing service is retried for at most `seconds`."""
    if name == PLAYBOOK:
        if base_url:
            raise BadArgument("--base-url is for a model's server; name the model with --model")
        from tilewright.authors.playbook_author import PlaybookAuthor  # no other author needs the playbook

        yield ChosenAuthor(name, PlaybookAuthor(), _no_model, None)
        return
    if name.startswith(f"{AGENT}:"):
        raise BadArgument(
            f"{name} sends its kernels itself, through `tilewright mcp`; name another author with "
            f"--model PROVIDER:NAME or --author {PLAYBOOK}"
        )
    retries = RetryPolicy(give_up_at=time.monotonic() + seconds)
    model = open_model(name, base_url=base_url or None, say=say, retries=retries)
    try:
        yield ChosenAuthor(name, ModelAuthor(name), model.complete, model.price)
    finally:
        model.close()


def checked_url(url: str | None, author: str = "") -> str:
    """A valid address, which a run may store; raises `BadArgument` for one with a password in it."""
    if not url:
        return ""
    if author == PLAYBOOK:
        raise BadArgument("--base-url is for a model's server; name the model with --model")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadArgument("--base-url holds a user name or a password, which are never stored; give a key by variable")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadArgument(f"--base-url {url}: write http://HOST:PORT/v1")
    return url


def _no_model(question: records.Question, on_text: Callable[[str], None]) -> records.Reply:
    raise AssertionError(f"the playbook asked a model: {question.id}")


# -- devices --


@dataclass(frozen=True)
class ChosenDevice:
    """The device that verifies and times kernels: a GPU of this machine, one behind a spool, or the emulator."""

    gpu: str  # a name of `PROFILES`
    label: str  # "H200 (emulated)", "NVIDIA H200 (cuda:0)"
    index: int | None = None  # of a GPU of this machine
    spool: str = ""  # its folder
    note: str = ""  # why the GPU of this machine is not used

    @property
    def is_emulated(self) -> bool:
        return self.index is None and not self.spool

    @property
    def words(self) -> str:
        times = "times are modelled, not measured" if self.is_emulated else "times are measured"
        return f"{self.label}; {times}{f'; {self.note}' if self.note else ''}"


def choose_device(gpu: str | None, spool: str = "") -> ChosenDevice:
    """The device for a GPU named by model or architecture; if `gpu` is None, for the GPU at hand."""
    wanted = None if gpu is None else named_gpu(gpu)
    if spool:
        return _spool_device(wanted, spool)
    local: tuple[records.GpuProfile, ...] = ()
    with suppress(DriverError):
        local = profiles()
    for index, profile in enumerate(local):
        if wanted is None or known_profile(profile) == wanted or gpu in (profile.arch, profile.arch.rstrip("a")):
            return ChosenDevice(known_profile(profile).name, f"{profile.name} (cuda:{index})", index)
    target = wanted or records.PROFILES["H200"]
    note = f"this machine has {local[0].name}, not {target.name}" if local else ""
    return emulated_device(target.name, note)


def emulated_device(gpu: str, note: str = "") -> ChosenDevice:
    return ChosenDevice(gpu, f"{gpu} (emulated)", note=note)


def same_device(began: records.Environment, gpu: str, spool: str) -> ChosenDevice:
    """The device for continuing a run: measured and modelled times are never mixed."""
    if began.emulated:
        if spool:
            raise BadArgument("this run's times are modelled, and go on so; make it anew with --fresh --spool DIR")
        return emulated_device(gpu, "as this run began")
    device = choose_device(gpu, spool)
    if device.is_emulated:
        raise BadArgument(
            f"this run was measured on {began.device}, and no such GPU is here; resume it there, or reach one with "
            "--spool DIR"
        )
    return device


@contextmanager
def open_devices(
    device: ChosenDevice, interrupt: Callable[[], bool] = uninterrupted
) -> Iterator[tuple[Device, Device | None]]:
    """The emulator, whose process starts with the first job, and the GPU or None. Spooled jobs are never cached."""
    with ExitStack() as stack:
        emulator = stack.enter_context(EmulatedDevice(records.PROFILES[device.gpu], interrupt=interrupt))
        if device.spool:
            yield emulator, stack.enter_context(SpoolDevice(device.spool, arch=records.PROFILES[device.gpu].arch))
        elif device.index is not None:
            gpu = stack.enter_context(CudaDevice(device.index, interrupt=interrupt))
            gpu.warm()
            yield emulator, gpu
        else:
            yield emulator, None


def gpu_reference(device: ChosenDevice, task: records.Task, gpu: Device | None) -> SpoolReference | None:
    """The task's reference on the machine of a spool's GPU; None without a spool."""
    if not device.spool or gpu is None:
        return None
    return SpoolReference(device.spool, task.reference, task.function, gpu=gpu.profile)


def known_profile(profile: records.GpuProfile) -> records.GpuProfile:
    """The known GPU of that name, or the typical one of its architecture."""
    known = records.known_gpu(profile.name, profile.cc) or records.TYPICAL.get(profile.arch)
    if known is None:
        raise BadArgument(
            f"{profile.name} has architecture {profile.arch}; known are {', '.join(records.ARCHITECTURES)}"
        )
    return known


def check_spool(spool: str | os.PathLike[str]) -> None:
    if not Path(spool).is_dir():
        start = f"start `python -m tilewright.worker {spool}` where a GPU is"
        raise BadArgument(f"--spool {spool}: there is no such folder; {start}")


def _spool_device(wanted: records.GpuProfile | None, spool: str) -> ChosenDevice:
    check_spool(spool)
    with SpoolDevice(spool, arch=wanted.arch if wanted else None, timeout=SPOOL_SECONDS) as device:
        found = device.profile
    return ChosenDevice((wanted or known_profile(found)).name, f"{found.name} (spool {spool})", spool=spool)


# -- settings --


def settings_of(
    author: str,
    budget: records.Budget,
    base_url: str | None,
    spool: str | os.PathLike[str] | None,
    baselines: Iterable[str] = records.USUAL_BASELINES,
    against: str = "",
    licence: str = "",
) -> records.Settings:
    """A run's settings with these options, checked; raises `BadArgument`."""
    return records.Settings(
        author=author,
        budget=budget,
        base_url=checked_url(base_url, author),
        spool=spool_path(spool),
        baselines=checked_baselines(baselines),
        against=checked_against(against, elsewhere=bool(spool)),
        licence=checked_licence(licence),
    )


def spool_path(spool: str | os.PathLike[str] | None) -> str:
    """A spool's folder as a run may store it: it may be resumed from another folder."""
    return os.path.realpath(spool) if spool else ""


def checked_against(text: str, elsewhere: bool = False) -> str:
    """`MODULE:FUNCTION`, or "". The module must be found here, unless another machine times it (`elsewhere`)."""
    if not text:
        return ""
    module, _, function = text.partition(":")
    if not function.isidentifier() or not all(name.isidentifier() for name in module.split(".")):
        raise BadArgument(f"--against {text}: write MODULE:FUNCTION")
    if not elsewhere and PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path]) is None:
        raise BadArgument(f"--against {text}: no module {module} is found here or in this environment")
    return text


def checked_baselines(names: Iterable[str]) -> tuple[str, ...]:
    """Names of baselines, without duplicates."""
    wanted = tuple(dict.fromkeys(name.strip() for name in names))
    unknown = next((name for name in wanted if name not in BASELINES), None)
    if unknown is not None:
        raise BadArgument(f"--baselines {unknown or '(nothing)'}: write some of {', '.join(BASELINES)}")
    return wanted


def checked_licence(text: str) -> str:
    """An SPDX expression, or ""."""
    if text and not re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", text.strip()):
        raise BadArgument(f"--license {text}: write an SPDX expression, such as Apache-2.0 or MIT OR Apache-2.0")
    return text.strip()
