"""What the site holds beside docs/: every file of the repository that a page links to.

Pages link as the repository has it (`../examples/silu.cu`), so that they read the same there. Here such a file becomes
a page or a copy under its own path, and the link leads to that; a link to a folder, of which a site has no page, loses
its link and keeps its words.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<!!)\[(?P<words>[^\]\n]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
PARTS = ("examples", "gallery", "benchmarks")  # of the repository; README.md and the like are not part of the site
START = ("examples/README.md", "gallery/README.md")
LANGUAGES = {".cu": "cuda", ".py": "python", ".toml": "toml"}  # shown as a page; anything else is copied


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what that links to in turn."""
    root = Path(config.docs_dir).parent
    waiting = [*(f"docs/{file.src_uri}" for file in files.documentation_pages()), *START]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(_added(path, root, config))
        if not path.endswith(".md"):
            continue
        for link in LINK.finditer((root / path).read_text()):
            target = _in_repository(path, link["target"])
            if target.split("/")[0] in PARTS and (root / target).is_file() and target not in seen:
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links of the repository to their place on the site."""
    root = Path(config.docs_dir).parent
    here = page.file.src_uri
    source = here if here.split("/")[0] in PARTS else f"docs/{here}"

    def led(link: re.Match[str]) -> str:
        target = link["target"]
        if ":" in target:
            return link[0]
        path = _in_repository(source, target)
        if (root / path).is_dir():
            return link["words"]
        place = _site_path(path.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            return link[0]  # mkdocs says so
        return f"[{link['words']}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{link['anchor'] or ''})"

    return LINK.sub(led, markdown)


def _in_repository(page: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _site_path(path: str) -> str:
    return f"{path}.md" if Path(path).suffix in LANGUAGES else path


def _added(path: str, root: Path, config: MkDocsConfig) -> File:
    language = LANGUAGES.get(Path(path).suffix)
    if language is None:
        return File.generated(config, path, abs_src_path=str(root / path))
    code = (root / path).read_text()
    return File.generated(config, _site_path(path), content=f"# {path}\n\n```{language}\n{code}\n```\n")
