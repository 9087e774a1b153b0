"""One HTML page that needs nothing else: no server, no network, no script; pictures lie in it as base64."""

import base64
import html
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, UnidentifiedImageError

from ..core import write_atomically
from .boxes import parts
from .figure import LOOK, Figure
from .names import in_words

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #4a4a4a; --line: #ddd; --rule: #888; --back: #fff;
  --accent: #0072B2; --shade: #f4f4f4; --edge: #0003 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #b4b4b4; --line: #3a3d42; --rule: #7c8087;
  --back: #16181c; --accent: #56B4E9; --shade: #22252b; --edge: #0009 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 60rem;
  margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-top: 2px solid var(--accent); padding-top: .75rem }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem }
.pictures .wide { grid-column: 1 / -1 }
figure { margin: 0 } img { max-width: 100%; height: auto; display: block; margin: 0 auto; background: #fff;
  border-radius: .4rem }
figcaption, details { font-size: .875rem; color: var(--soft) } summary { cursor: pointer; padding: .35rem 0 }
figcaption pre { white-space: pre-wrap; font: inherit; margin: .25rem 0 }
.table { overflow-x: auto; margin: .75rem 0; background:
  linear-gradient(90deg, var(--back) 30%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(270deg, var(--back) 30%, transparent) right / 2rem 100% no-repeat local,
  radial-gradient(farthest-side at 0 50%, var(--edge), transparent) left / .8rem 100% no-repeat scroll,
  radial-gradient(farthest-side at 100% 50%, var(--edge), transparent) right / .8rem 100% no-repeat scroll }
table { border-collapse: collapse; font-size: .875rem; overflow-wrap: normal; color: var(--ink) }
th, td { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap }
th { border-bottom: 2px solid var(--rule); vertical-align: bottom }
.number { text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { white-space: normal; min-width: 7rem; padding-left: 0 }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .15rem 1rem; font-size: .875rem }
dt { color: var(--soft) } dd { margin: 0 } pre.text { overflow-x: auto; background: var(--shade); padding: .75rem;
  font-size: .75rem; line-height: 1.2 }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .4rem } }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".svg": "svg+xml"}
NUMBER = re.compile(r"[-+±]?[\d.,]+(e[-+]?\d+)?( ?[%×x]| ?[kMGT]?( ?(ms|s|MACs|px|MiB|B))?)?")
"""A number with or without a unit, as tables of text write it."""
WIDE = 1.9
"""Pictures so much wider than high get the whole width of the page."""


class Page:
    """A page that grows from top to bottom.

    >>> page = Page("runs")
    >>> page.heading("first").table([{"model": "vit", "top1": 80.0}])  # doctest: +ELLIPSIS
    <...Page object at ...>
    >>> '<td class="number">80</td>' in page.html()
    True
    """

    def __init__(self, title: str):
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str, level: int = 2) -> "Page":
        words = html.escape(text).replace("_", "_<wbr>")  # names of files break where their words end
        self.parts.append(f"<h{level}>{words}</h{level}>")
        return self

    def text(self, text: str) -> "Page":
        self.parts.append(f"<p>{html.escape(text)}</p>")
        return self

    def plain(self, text: str) -> "Page":
        """Text as it stands; what a terminal drew as a table becomes one. Wide text is scrolled in its own box."""
        for part in parts(text):
            if isinstance(part, str):
                one = "\n" not in part
                self.parts.append(f"<p>{html.escape(part)}</p>" if one else _preformatted(part))
            else:
                self.table(part)
        return self

    def facts(self, facts: Mapping[str, Any], folded: str | None = None) -> "Page":
        """Names and values, behind a line to click on where `folded` names them; what has no value is left out."""
        told = {named(key): shown(value) for key, value in facts.items()}
        rows = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in told.items() if v)
        if rows:
            self.parts.append(_folded(f"<dl>{rows}</dl>", folded))
        return self

    def table(self, rows: Sequence[Mapping[str, Any]], folded: str | None = None) -> "Page":
        """Rows under the names of their values; a wide table is scrolled in its own box."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        kinds = {key: ' class="number"' if _numbers(row.get(key) for row in rows) else "" for key in columns}
        head = "".join(f'<th scope="col"{kinds[key]}>{html.escape(named(key))}</th>' for key in columns)
        body = "".join(
            "<tr>" + "".join(f"<td{kinds[key]}>{html.escape(shown(row.get(key)))}</td>" for key in columns) + "</tr>"
            for row in rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self.parts.append(_folded(f'<div class="table" tabindex="0">{table}</div>', folded))
        return self

    def pictures(self, pictures: Sequence[Figure | Path]) -> "Page":
        """Figures and picture files, each with its words below it."""
        shown = "".join(_picture(each) for each in pictures)
        self.parts.append(f'<div class="pictures">{shown}</div>')
        return self

    def html(self) -> str:
        """The whole page."""
        title = html.escape(self.title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all."""
        return write_atomically(path, lambda name: Path(name).write_text(self.html(), encoding="utf-8"))


def shown(value: Any) -> str:
    """A value as people read it; WordNet ids become words.

    >>> shown(0.1234567), shown(None), shown({"a": [1, 2]}), shown(25_000_000), shown("n02099601")
    ('0.1235', '', 'a: 1, 2', '25,000,000', 'golden retriever')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        told = {named(key): shown(inner) for key, inner in value.items()}
        return "; ".join(f"{key}: {inner}" for key, inner in told.items() if inner)
    return ", ".join(filter(None, map(shown, value))) if isinstance(value, list | tuple) else in_words(str(value))


def named(key: Any) -> str:
    """The name of a value as people read it.

    >>> named("images_per_second"), named("recall n02099601")
    ('images per second', 'recall golden retriever')
    """
    return in_words(str(key)).replace("_", " ")


def _numbers(values: Iterable[Any]) -> bool:
    """Whether a column holds numbers, with or without a unit, and so is read from the right."""
    given = [value for value in values if value is not None]
    return bool(given) and all(
        not isinstance(value, bool) and (isinstance(value, int | float) or NUMBER.fullmatch(str(value)) is not None)
        for value in given
    )


def _preformatted(text: str) -> str:
    return f'<pre class="text" tabindex="0">{html.escape(text)}</pre>'


def _folded(content: str, name: str | None) -> str:
    return content if name is None else f"<details><summary>{html.escape(name)}</summary>{content}</details>"


def _picture(picture: Figure | Path) -> str:
    if isinstance(picture, Figure):
        data, kind, words = _drawn(picture), "svg+xml", picture.summary
        width, height = picture.plot.get_size_inches()
    else:
        data, kind = picture.read_bytes(), KINDS[picture.suffix.lower()]
        (width, height), words = _of_file(data, kind)
        words = words or picture.stem.replace("_", " ").replace("-", " ")
    first, *rest = words.splitlines()
    more = _folded(f"<pre>{html.escape(chr(10).join(rest))}</pre>", "in words") if rest else ""
    wide = ' class="wide"' if width > WIDE * height else ""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure{wide}><img src="{source}" alt="{html.escape(words)}">'
        f"<figcaption>{html.escape(first)}{more}</figcaption></figure>"
    )


def _drawn(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context({**LOOK, "svg.fonttype": "path"}):  # the reader's machine may lack the font
        figure.plot.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _of_file(data: bytes, kind: str) -> tuple[tuple[int, int], str]:
    """Width and height of a picture file, and its words where `Figure.save` left some."""
    if kind == "svg+xml":
        return (1, 1), ""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size, str(getattr(image, "text", {}).get("Description", ""))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"a picture of the run cannot be read: {error}") from error
