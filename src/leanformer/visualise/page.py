"""One HTML page that needs nothing else: no server, no network, no script; pictures lie in it as base64."""

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, UnidentifiedImageError

from ..core import write_atomically
from .figure import LOOK, Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 60rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-top: 2px solid #0072B2; padding-top: .75rem }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem }
.pictures .wide { grid-column: 1 / -1 }
figure { margin: 0 } img { max-width: 100%; height: auto; display: block; margin: 0 auto }
figcaption, details { font-size: .875rem; color: #444 } summary { cursor: pointer; padding: .35rem 0 }
figcaption pre { white-space: pre-wrap; font: inherit; margin: .25rem 0 }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: .875rem; overflow-wrap: normal }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { border-bottom: 2px solid #888 } th:first-child, td:first-child { text-align: left; white-space: normal;
  min-width: 7rem }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .15rem 1rem; font-size: .875rem }
dt { color: #444 } dd { margin: 0 } pre.text { overflow-x: auto; background: #f4f4f4; padding: .75rem;
  font-size: .75rem; line-height: 1.2 }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".svg": "svg+xml"}
WIDE = 1.9
"""Pictures so much wider than high get the whole width of the page."""


class Page:
    """A page that grows from top to bottom.

    >>> page = Page("runs")
    >>> page.heading("first").table([{"model": "vit", "top1": 80.0}])  # doctest: +ELLIPSIS
    <...Page object at ...>
    >>> "<td>80</td>" in page.html()
    True
    """

    def __init__(self, title: str):
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str, level: int = 2) -> "Page":
        self.parts.append(f"<h{level}>{html.escape(text)}</h{level}>")
        return self

    def text(self, text: str) -> "Page":
        self.parts.append(f"<p>{html.escape(text)}</p>")
        return self

    def plain(self, text: str) -> "Page":
        """Text as it stands, such as a table of a terminal; wide text is scrolled in its own box."""
        self.parts.append(f'<pre class="text" tabindex="0">{html.escape(text)}</pre>')
        return self

    def facts(self, facts: Mapping[str, Any], folded: str | None = None) -> "Page":
        """Names and values, behind a line to click on where `folded` names them."""
        rows = "".join(f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(shown(v))}</dd>" for k, v in facts.items())
        self.parts.append(_folded(f"<dl>{rows}</dl>", folded))
        return self

    def table(self, rows: Sequence[Mapping[str, Any]], folded: str | None = None) -> "Page":
        """Rows under the names of their values; a wide table is scrolled in its own box."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        head = "".join(f"<th>{html.escape(str(key))}</th>" for key in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(shown(row.get(key)))}</td>" for key in columns) + "</tr>"
            for row in rows
        )
        table = f'<div class="table" tabindex="0"><table><tr>{head}</tr>{body}</table></div>'
        self.parts.append(_folded(table, folded))
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
    """A value as people read it.

    >>> shown(0.1234567), shown(None), shown({"a": [1, 2]}), shown(25_000_000)
    ('0.1235', '', 'a: 1, 2', '25,000,000')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {shown(inner)}" for key, inner in value.items())
    return ", ".join(map(shown, value)) if isinstance(value, list | tuple) else str(value)


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
