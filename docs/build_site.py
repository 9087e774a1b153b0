"""What `make docs` makes beside the pages written by hand: the reference, the commands, the results, equations.

leanformer's public names  →  reference/*.md        leanformer VERB --help  →  reference/commands.md
results/*.json             →  results.md            CHANGELOG, CONTRIBUTING →  changelog.md, contributing.md
```math blocks             →  MathML, which browsers draw without a script
"""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOMS = {
    "leanformer": "What `import leanformer as lf` offers.",
    "core": "Blocks, methods, plans and cards: what everything else is made of.",
    "methods": "The methods, by name.",
    "backbones": "Timm's models and our own as rows of blocks.",
    "data": "Images from folders, packs, streams and tensors.",
    "train": "Training, distillation and evaluation.",
    "tasks": "What differs between kinds of training.",
    "measure": "Counting, timing and results.",
    "export": "Files for other runtimes, each compared with its model.",
    "prediction": "Answers for many pictures.",
    "serve": "A model over HTTP.",
    "visualise": "Pictures of what a model does.",
    "hub": "Models from and to folders of a hub.",
    "papers": "Published recipes.",
}
ROOMS = {room: said for room, said in ROOMS.items() if room == "leanformer" or find_spec(f"leanformer.{room}")}
"""Room → what its page says first. The page of `papers` is that of `lf.recipes`."""
RENDERED = ("results", "papers")
"""Verbs of the laboratory that write a page of their name."""
COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
REST = "https://github.com/leanformer/leanformer/blob/main/"


def mathml(source: str, *_: Any, **__: Any) -> str:
    """A block of LaTeX as MathML; one equation a line, parted by a blank line.

    Args:
        source: The text of the block.
    """
    return "\n".join(convert(part.strip(), display="block") for part in source.split("\n\n") if part.strip())


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out of the navigation what is not there: a few pages come with parts that an installation may lack."""
    made = (
        {f"reference/{name}.md" for name in [*ROOMS, "commands", "index"]}
        | set(COPIED)
        | {f"{verb}.md" for verb in RENDERED}
    )
    config.nav = _there(config.nav, Path(config.docs_dir), made)
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    """Render results/ into pages, unless they are newer than everything that they are made from."""
    sources = [*(ROOT / "results").glob("*.json"), *(ROOT / "src/leanformer/papers").rglob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)
    for verb in RENDERED:
        page = Path(config.docs_dir) / f"{verb}.md"
        if not page.exists() or page.stat().st_mtime < newest:
            command = [sys.executable, "-m", "lab", verb, "--page", str(page), "--folder", str(ROOT / "results")]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {f"reference/{room}.md": room_page(room) for room in ROOMS}
    pages["reference/index.md"] = _index()
    pages["reference/commands.md"] = commands_page()
    for page, source in COPIED.items():
        pages[page] = _linked((ROOT / source).read_text(encoding="utf-8"))
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep a page of numbers out of the search, and the tests' markers out of the pages."""
    if page.file.src_uri.removesuffix(".md") in RENDERED:
        page.meta["search"] = {"exclude": True}
    return re.sub(r"<!-- block: .*? -->\n", "", markdown, flags=re.DOTALL)


def public_names(room: str) -> dict[str, tuple[str, Any]]:
    """The public names of a room → the path by which they are found without running the package, and their values.

    Args:
        room: A key of ROOMS.
    """
    module = importlib.import_module(_module(room))
    names = getattr(module, "__all__", None) or dir(module)
    start = f"{module.__name__}._public" if (_folder(module) / "_public.py").exists() else module.__name__
    return {name: (f"{start}.{name}", getattr(module, name)) for name in sorted(names, key=str.lower)}


def room_page(room: str) -> str:
    """One page of the reference: every public name of a room, those that `lf` offers too as links.

    Args:
        room: A key of ROOMS.
    """
    shown = "lf" if room == "leanformer" else _module(room)
    parts = [f"# {_module(room)}", ROOMS[room]]
    top = {} if room == "leanformer" else {name: value for name, (_, value) in public_names("leanformer").items()}
    for name, (path, value) in public_names(room).items():
        label = f"{shown}.{name}"
        if isinstance(value, ModuleType):
            parts.append(_module_entry(name, value, label))
        elif name in top and top[name] is value:
            parts.append(f"## `{label}`\n\nThe same as [`lf.{name}`](leanformer.md#lf.{name}).")
        elif name == "__version__":
            parts.append(f'<a id="{label}"></a>\n\n## `{label}`\n\nThe version, as text.')
        else:
            parts.append(_entry(path, label))
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every verb of the command line with its help."""
    from leanformer.cli import VERBS, find_verb
    from leanformer.cli.parser import parse

    parts = ["# Commands", "What `leanformer VERB --help` prints."]
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        for verb in VERBS:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                parse(find_verb(verb), verb, ["--help"])
            parts.append(f"## leanformer {verb}\n\n```text\n{said.getvalue().strip()}\n```")
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    rows = [f"| [`{_module(room)}`]({room}.md) | {said} |" for room, said in ROOMS.items()]
    said = "Made from the docstrings of every public name. What does not stand here may change without notice."
    return "\n".join(["# Reference", "", said, "", "| room | what it holds |", "| --- | --- |", *rows, ""])


def _entry(path: str, label: str) -> str:
    """One object, by mkdocstrings, with an anchor by the name that users know it by."""
    options = f"    options:\n      heading: {label}\n      toc_label: {label}"
    return f'<a id="{label}"></a>\n\n::: {path}\n{options}'


def _module_entry(name: str, module: ModuleType, label: str) -> str:
    for room in ROOMS:
        if module.__name__ == _module(room):
            return f'<a id="{label}"></a>\n\n## `{label}`\n\n{ROOMS[room]} [Its page]({room}.md).'
    return _entry(module.__name__, label)


def _module(room: str) -> str:
    return {"leanformer": "leanformer", "papers": "leanformer.papers.recipes"}.get(room, f"leanformer.{room}")


def _folder(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).parent


def _linked(text: str) -> str:
    """Links to files of the repository as links to their place on the web."""
    return re.sub(r"\]\((?!http|#)([^)]+)\)", lambda found: f"]({REST}{found[1]})", text)


def _there(entries: Any, folder: Path, made: set[str]) -> Any:
    """A navigation without the pages that do not exist."""
    if isinstance(entries, list):
        kept = [_there(each, folder, made) for each in entries]
        return [each for each in kept if each]
    if isinstance(entries, dict):
        return {name: inner for name, value in entries.items() if (inner := _there(value, folder, made))}
    return entries if entries in made or (folder / entries).exists() else None
