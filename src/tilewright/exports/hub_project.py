"""`--to hub`: a kernel-builder project and the `build/<variant>/` tree that the `kernels` package loads.

Both variants share their Python source: `torch-cuda` has the cubins and the compiled launch path, `torch-cpu` runs the
reference. Neither kernel-builder nor Nix is needed to write or load them.

If the op is a layer that `kernels.kernelize` knows, the package also has that layer. It has only a `forward` with
the parameters of the layer it replaces, and reshapes tensors to the rank that the kernel takes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from tilewright import __version__
from tilewright.exports.python_op import python_name
from tilewright.exports.recognition import LAYERS, Form, fitting_forms, recognise
from tilewright.exports.source import Source
from tilewright.exports.torch_package import PackageNames, add_package, add_python, package_values
from tilewright.exports.variants import Variants
from tilewright.exports.writing import Folder, NotExportable, render_template
from tilewright.records import TensorSpec, to_json

_HUB_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
VERSION = 1  # of the kernel's interface on the Hub
_ALIASES = {"GeluTanh": ("GeluTanh", "NewGELU", "FastGELU")}  # one formula, three classes in transformers
_ATTENTION = ("attention", "causal_attention")


def write_hub(
    source: Source, variants: Variants, name: str, folder: Folder, layer: str = "", repository: str = ""
) -> list[str]:
    """Fill the folder; returns notes. `layer` chooses the layer, `repository` is "USER/NAME"."""
    hub_name = name.lower().replace("_", "-")
    if not _HUB_NAME.fullmatch(hub_name):
        raise NotExportable(f"{hub_name!r} is no name for the Hub; give another with --name")
    if source.reference is None:
        raise NotExportable(
            "a Hub project needs a reference, for CPUs and for calls that the kernels do not take; give --reference"
        )
    hub = _HubWriter(source, variants, hub_name, _find_layer(source, layer))
    notes = hub.add_builds(folder)
    hub.add_project(folder, repository)
    if hub.form is None:
        notes.append("no known layer of transformers matches, so it is a function only; give --layer to choose one")
    elif hub.form.layer in _ATTENTION:
        notes.append("it is an attention: `attention` fits transformers' AttentionInterface")
    else:
        notes.append(f"layers: {', '.join(_layer_names(hub.form))}")
    return notes


def _find_layer(source: Source, wanted: str) -> Form | None:
    """The layer with that name, or the one that the op is recognised as."""
    if wanted and wanted not in LAYERS:
        raise NotExportable(f"--layer {wanted}: write one of {', '.join(LAYERS)}")
    recognised = recognise(source)
    if not wanted or (recognised is not None and recognised.layer == wanted):
        return recognised
    forms = fitting_forms(source, wanted)
    if not forms:
        raise NotExportable(f"--layer {wanted}: the parameters of {source.op.name} are not that layer's")
    return forms[0]


def _layer_names(form: Form | None) -> tuple[str, ...]:
    """The classes in `layers.py`."""
    return () if form is None or form.layer in _ATTENTION else _ALIASES.get(form.layer, (form.layer,))


@dataclass(frozen=True)
class _HubWriter:
    source: Source
    variants: Variants
    hub_name: str
    form: Form | None

    @property
    def package(self) -> str:
        return self.hub_name.replace("-", "_")

    @property
    def module(self) -> str:
        return "" if self.form is None else "attention" if self.form.layer in _ATTENTION else "layers"

    def add_builds(self, folder: Folder) -> list[str]:
        """Add both variants, each with its own namespace and digests; returns notes."""
        notes: list[str] = []
        for backend in ("cuda", "cpu"):
            part = Folder()
            identity = self._identity(backend)
            names = PackageNames(self.package, self.source.op.name, identity, self.module)
            if backend == "cuda":
                notes = add_package(self.source, self.variants, names, part, "v")
            else:
                add_python(self.source, self.variants, names, part, "v")
                part.add("v/_ops.py", render_template("package/_ops.py", namespace=identity))
            self._add_layers(part, "v")
            files = {path.removeprefix("v/"): content for path, content in part.files.items()}
            metadata = self._metadata(identity, backend, files)
            for path, content in {**files, "metadata.json": metadata.encode()}.items():
                folder.add(f"build/torch-{backend}/{path}", content)
        return notes

    def _identity(self, backend: str) -> str:
        """Unique per build: the module's name in the process, and torch's namespace for its operators."""
        parts = [file.identity for file in self.source.files]
        parts += [build.key for module in self.variants.modules for build in module.builds]
        digest = hashlib.sha256("\0".join([self.package, backend, __version__, *parts]).encode()).hexdigest()
        return f"_{self.package}_{backend}_{digest[:7]}"

    def _metadata(self, identity: str, backend: str, files: dict[str, bytes]) -> str:
        digests = {path: base64_digest(content) for path, content in sorted(files.items())}
        record: dict[str, Any] = {
            "name": self.hub_name,
            "id": identity,
            "version": VERSION,
            "license": self.source.licence,
            "python-depends": [],
            "backend": {"type": backend},
            "digest": {"algorithm": "sha256", "files": digests},
        }
        return json.dumps(record, indent=2) + "\n"

    def _add_layers(self, folder: Folder, place: str) -> None:
        """Add `layers.py`, or `attention.py` for an attention."""
        form, op = self.form, self.source.op
        if form is None:
            return
        roles = iter(form.roles)
        specs = [value for value in self.source.calls[0].values() if isinstance(value, TensorSpec)]
        is_rotary = len(specs) == 3
        text = render_template(
            f"hub/{self.module}.py",
            function=python_name(op.name),
            names=_layer_names(form),
            kind=form.layer,
            roles=form.roles,
            call=", ".join(form.number if one.scalar is not None else next(roles) for one in op.parameters),
            rank=specs[0].ndim,
            half_cosines=is_rotary and specs[1].shape[-1:] != specs[0].shape[-1:],
            trigonometry_rank=specs[1].ndim if is_rotary else 0,
            trigonometry_dtype=specs[-1].dtype.torch_name,
            differentiable=not any(one.in_place for one in op.parameters),
            causal=form.layer == "causal_attention",
            has_scale=form.number == "scale",
        )
        folder.add(f"{place}/{self.module}.py", text)

    def add_project(self, folder: Folder, repository: str) -> None:
        names = PackageNames(self.package, self.source.op.name, "", self.module)
        part = Folder()
        add_package(self.source, self.variants, names, part, self.package)
        self._add_layers(part, self.package)
        for path, content in part.files.items():
            if not path.endswith("/_ops.py"):  # kernel-builder writes its own
                folder.add(f"torch-ext/{path}", content)
        values = {
            **package_values(self.source, self.variants, names),
            "hub_name": self.hub_name,
            "kernel_version": VERSION,
            "repository": repository,
            "layer_names": _layer_names(self.form),
            "is_attention": self.module == "attention",
        }
        for template, path in (
            ("build.toml", "build.toml"),
            ("flake.nix", "flake.nix"),
            ("CARD.md", "CARD.md"),
            ("test_kernel.py", f"tests/test_{self.package}.py"),
            ("benchmark.py", "benchmarks/benchmark.py"),
        ):
            folder.add(path, render_template(f"hub/{template}", **values))
        folder.add("README.md", folder.files["CARD.md"])
        if self.source.provenance is not None:
            folder.add("provenance.json", json.dumps(to_json(self.source.provenance), indent=2) + "\n")


def base64_digest(content: bytes) -> str:
    """The SHA-256 of a file, as `metadata.json` has it."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()
