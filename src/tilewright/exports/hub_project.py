"""`--to hub`: a kernel-builder project and the `build/<variant>/` tree that the `kernels` package loads as it is.

The same Python source serves both variants: `torch-cuda` has the cubins and the compiled launch path beside it,
`torch-cpu` runs the reference. Nothing of kernel-builder or Nix is needed to write or to load them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from tilewright import __version__
from tilewright.exports.layers import ATTENTION, find_layer, layer_names, layers_text
from tilewright.exports.recognition import Form
from tilewright.exports.source import Source
from tilewright.exports.torch_package import PackageNames, add_package, add_python, package_values
from tilewright.exports.variants import Variants
from tilewright.exports.writing import Folder, NotExportable, rendered
from tilewright.records import to_json

_HUB_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
VERSION = 1  # of the kernel's interface on the Hub


@dataclass(frozen=True)
class HubChoices:
    """What a person may say of a Hub project beside its name."""

    layer: str = ""
    repository: str = ""  # "USER/NAME"


def write_hub(
    source: Source, variants: Variants, name: str, folder: Folder, choices: HubChoices | None = None
) -> list[str]:
    """Fill the folder; answers sentences about what is worth knowing."""
    choices = choices or HubChoices()
    hub_name = name.lower().replace("_", "-")
    if not _HUB_NAME.fullmatch(hub_name):
        raise NotExportable(f"{hub_name!r} is no name for the Hub; give another with --name")
    if source.reference is None:
        raise NotExportable(
            "a Hub project needs a reference, for CPUs and for what the kernels do not take; give --reference"
        )
    package = hub_name.replace("-", "_")
    form = find_layer(source, choices.layer)
    module = "" if form is None else "attention" if form.layer in ATTENTION else "layers"
    notes = _builds(source, variants, package, hub_name, form, module, folder)
    _project(source, variants, package, hub_name, form, module, choices, folder)
    notes.append(_layer_note(form))
    return notes


def _layer_note(form: Form | None) -> str:
    if form is None:
        return "it is no layer that transformers knows by name, so it is a function only; --layer says otherwise"
    if form.layer in ATTENTION:
        return "it is an attention: `attention` fits transformers' AttentionInterface"
    return f"layers: {', '.join(layer_names(form))}"


# -- build/ --


def _builds(
    source: Source, variants: Variants, package: str, hub_name: str, form: Form | None, module: str, folder: Folder
) -> list[str]:
    """The two variants, each with its own namespace and digest."""
    notes: list[str] = []
    for backend in ("cuda", "cpu"):
        part = Folder()
        identity = _identity(source, variants, package, backend)
        names = PackageNames(package, source.op.name, identity, module)
        if backend == "cuda":
            notes = add_package(source, variants, names, part, "v")
        else:
            add_python(source, variants, names, part, "v")
            part.add("v/_ops.py", rendered("package/_ops.py", namespace=identity))
        _add_layers(source, form, module, part, "v")
        files = {path.removeprefix("v/"): content for path, content in part.files.items()}
        metadata = _metadata(source, hub_name, identity, backend, files)
        for path, content in {**files, "metadata.json": metadata.encode()}.items():
            folder.add(f"build/torch-{backend}/{path}", content)
    return notes


def _identity(source: Source, variants: Variants, package: str, backend: str) -> str:
    """Unique to the build: it is the module's name in the process, and torch's namespace for its operators."""
    parts = [file.identity for file in source.files] + [build.key for m in variants.modules for build in m.builds]
    digest = hashlib.sha256("\0".join([package, backend, __version__, *parts]).encode()).hexdigest()
    return f"_{package}_{backend}_{digest[:7]}"


def _metadata(source: Source, hub_name: str, identity: str, backend: str, files: dict[str, bytes]) -> str:
    digests = {
        path: base64.b64encode(hashlib.sha256(content).digest()).decode() for path, content in sorted(files.items())
    }
    record: dict[str, Any] = {
        "name": hub_name,
        "id": identity,
        "version": VERSION,
        "license": source.licence,
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    return json.dumps(record, indent=2) + "\n"


def _add_layers(source: Source, form: Form | None, module: str, folder: Folder, place: str) -> None:
    if form is not None:
        differentiable = not any(one.in_place for one in source.op.parameters)
        folder.add(f"{place}/{module}.py", layers_text(source, form, source.op.name, differentiable))


# -- the project --


def _project(
    source: Source,
    variants: Variants,
    package: str,
    hub_name: str,
    form: Form | None,
    module: str,
    choices: HubChoices,
    folder: Folder,
) -> None:
    names = PackageNames(package, source.op.name, "", module)
    part = Folder()
    add_package(source, variants, names, part, package)
    _add_layers(source, form, module, part, package)
    for path, content in part.files.items():
        if not path.endswith("/_ops.py"):  # kernel-builder writes its own
            folder.add(f"torch-ext/{path}", content)
    values = {
        **package_values(source, variants, names),
        "hub_name": hub_name,
        "kernel_version": VERSION,
        "repository": choices.repository,
        "layer_names": layer_names(form) if form is not None else (),
        "is_attention": form is not None and form.layer in ATTENTION,
    }
    for template, path in (
        ("build.toml", "build.toml"),
        ("flake.nix", "flake.nix"),
        ("CARD.md", "CARD.md"),
        ("test_kernel.py", f"tests/test_{package}.py"),
        ("benchmark.py", "benchmarks/benchmark.py"),
    ):
        folder.add(path, rendered(f"hub/{template}", **values))
    folder.add("README.md", folder.files["CARD.md"])
    if source.provenance is not None:
        folder.add("provenance.json", json.dumps(to_json(source.provenance), indent=2) + "\n")
