"""Hooks of mkdocs (mkdocs.yml): what turns the repository's Markdown, which GitHub shows as it is, into a site.

- README, CHANGELOG and CONTRIBUTING lie beside docs/ and become pages of the site; README is the front page.
- A link that leaves docs/, as ../examples/segmentation.py, leads to a copy of that file in the site.
- The API reference has a page for each subject, made from docstrings: nothing of it is kept in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site that lie outside of docs/."""
COPIES = "files"
"""The folder of the site for other files of the repository that pages link to."""
REFERENCE: dict[str, tuple[str, dict[str, list[str] | None]]] = {
    "flopping": (
        "Groups, layouts and features: the values that everything else takes.",
        {
            "flopping.groups": None,
            "flopping.features": None,
            "flopping.groups.irreps": None,
            "flopping.groups.symmetries": None,
        },
    ),
    "nn": ("The layers. [Layers](../layers.md) says which groups each supports.", {"flopping.nn": None}),
    "models": (
        "The networks of the paper. [The networks](../models.md) explains them.",
        {"flopping.models": None},
    ),
    "using": (
        "[Classifying](../predict.md), [exporting](../export.md), [showing](../show.md) and [probing](../probe.md).",
        {
            "flopping.deploy": None,
            "flopping.data.photos": None,
            "flopping.lab.show": None,
            "flopping.lab.probe": None,
        },
    ),
    "functional": ("Pure operations on features.", {"flopping.functional": None, "flopping.functional.grid": None}),
    "testing": (
        "Whether a module follows its group, and which layer of a network is the first that doesn't.",
        {"flopping.testing": None, "flopping.testing.verify": None},
    ),
    "checkpoints": (
        "Files of weights. [Checkpoints](../checkpoints.md) is an overview.",
        {"flopping.checkpoints": None},
    ),
    "training": (
        "Recipes, jobs and runs. [Training](../training.md) has an example in Python.",
        {
            "flopping.training.recipe": None,
            "flopping.training.job": ["Job", "RunOptions"],
            "flopping.training.run": ["train"],
            "flopping.training.networks": ["find_checkpoint", "load_checkpoint", "open_checkpoint"],
            "flopping.training.evaluate": ["Accuracy", "Evaluation", "accuracy", "evaluate_checkpoint"],
            "flopping.training.run_log": ["read_log"],
            "flopping.data.datasets": ["open_dataset"],
        },
    ),
    "bench": (
        "Counting and measuring. [Counting](../counting.md) and [measuring](../measuring.md) explain how.",
        {
            "flopping.cost.count": None,
            "flopping.cost.timing": None,
            "flopping.cost.records": None,
            "flopping.cost.measure": ["Session"],
        },
    ),
    "theory": (
        "Representations of any finite group, found numerically.",
        {"flopping.groups.representations": None, "flopping.groups.characters": None},
    ),
}
"""Pages of the API reference: what they are about, and their modules with the names to show (None: all public ones)."""

TITLES = {
    "flopping": "flopping",
    "using": "Networks in use",
    "testing": "flopping.testing and flopping.testing.verify",
    "theory": "Theory",
}

LINK = re.compile(r"(?P<before>\]\()(?P<target>(?![a-z]+:|#)[^)\s#]+)(?P<rest>[^)\s]*\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def reference_page(subject: str) -> str:
    """The Markdown of a page of the reference: mkdocstrings fills it in."""
    about, modules = REFERENCE[subject]
    lines = [f"# {TITLES.get(subject, f'flopping.{subject}')}", "", about, ""]
    for module, names in modules.items():
        lines += [f"::: {module}"]
        if names is not None:
            lines += ["    options:", f"      members: [{', '.join(names)}]"]
        lines += [""]
    return "\n".join(lines)


def in_the_site(target: str, source: str) -> tuple[str, Path | None]:
    """Where a link of a page leads in the site, and the file that has to be copied there.

    `target` is what the page says, `source` the page's place in the repository, as README.md or docs/dense.md.

    >>> in_the_site("docs/dense.md", "README.md")[0], in_the_site("layers.md", "docs/dense.md")[0]
    ('dense.md', 'layers.md')
    >>> in_the_site("../README.md", "docs/dense.md")[0], in_the_site("../examples/slurm.sbatch", "docs/dense.md")[0]
    ('index.md', 'files/examples/slurm.sbatch')
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    here = posixpath.dirname(place_of(source))
    if path in PAGES:
        return posixpath.relpath(PAGES[path], here or "."), None
    if path.startswith("docs/"):
        return posixpath.relpath(path.removeprefix("docs/"), here or "."), None
    place = f"{COPIES}/{path}"
    return posixpath.relpath(place, here or "."), ROOT / path


def place_of(source: str) -> str:
    """A page's place in the site from that in the repository."""
    return PAGES.get(source) or source.removeprefix("docs/")


def source_of(place: str) -> str:
    """And the other way round."""
    return next((source for source, page in PAGES.items() if page == place), f"docs/{place}")


def outside(text: str, source: str) -> dict[str, Path]:
    """Files outside of the site that a page links to, by their places in the site."""
    found = {}
    for match in LINK.finditer(FENCE.sub("", text)):
        link, path = in_the_site(match["target"], source)
        if path is not None:
            found[posixpath.normpath(posixpath.join(posixpath.dirname(place_of(source)), link))] = path
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, the reference, and what pages link to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for subject in REFERENCE:
        files.append(File.generated(config, f"api/{subject}.md", content=reference_page(subject)))
    copies: dict[str, Path] = {}
    for file in files.documentation_pages():
        if not file.src_uri.startswith("api/"):
            copies |= outside(file.content_string, source_of(file.src_uri))
    for place, path in copies.items():
        if path.is_file():  # a link that leads nowhere stays, and is a warning
            files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as they are in the site; code blocks stay as they are."""
    if page.file.src_uri.startswith("api/"):
        return markdown
    source = source_of(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        return f"{match['before']}{in_the_site(match['target'], source)[0]}{match['rest']}"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])
