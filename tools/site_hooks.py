"""Hooks of `mkdocs build`: point links out of docs/ to copies of the files, convert TeX to MathML, keep flags whole.

The site is therefore self-contained: its sources, records and formulas need no other host. The tables of objectives
and networks are made from the registry.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from registry_tables import filled

ROOT = Path(__file__).parents[1]
COPIES = "files"
_LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s#]+)", re.MULTILINE)
_INLINE_CODE = re.compile(r"(?<!<pre>)<code>([^<]*-[^<]*)</code>")
_WORD = re.compile(r"[^\s]+")
_PHONE = 24
"""Characters of inline code that fit on a narrow screen, even in a table."""
_AS_THEY_ARE = {".png", ".svg", ".html", ".ipynb"}


def _outside(page: str, target: str) -> str | None:
    """Return the repository path of a link from a page in docs/ if it points out of docs/, else None."""
    if re.match(r"[a-z]+:|/", target):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if path.startswith("docs/") or not (ROOT / path).is_file():
        return None
    return path


def _copy(path: str) -> str:
    """Return the path of a file's copy in the site: as text, unless browsers or Jupyter open the format."""
    return f"{COPIES}/{path}" if Path(path).suffix in _AS_THEY_ARE else f"{COPIES}/{path}.txt"


def on_files(files: Files, config: Any) -> Files:
    """Add a copy of each file that a page links to."""
    wanted = set()
    for page in files.documentation_pages():
        for found in _LINK.finditer(page.content_string):
            if path := _outside(page.src_uri, found[2]):
                wanted.add(path)
    for path in sorted(wanted):
        files.append(File.generated(config, _copy(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make the tables of the registry, and point links to the copies."""
    markdown = filled(markdown)
    here = posixpath.dirname(page.file.src_uri)

    def lead(found: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, found[2])
        return found[0] if path is None else found[1] + posixpath.relpath(_copy(path), here or ".")

    return _LINK.sub(lead, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Point links of pages that are already HTML to the copies."""
    site = Path(config["site_dir"])
    for page in (ROOT / "docs").rglob("*.html"):
        place = page.relative_to(ROOT / "docs").as_posix()

        def lead(found: re.Match[str], place: str = place) -> str:
            path = _outside(place, found[2])
            if path is None or not (site / _copy(path)).is_file():
                return found[0]
            return found[1] + posixpath.relpath(_copy(path), posixpath.dirname(place))

        (site / place).write_text(re.sub(r'(href=")([^"#]+)', lead, page.read_text(encoding="utf-8")), encoding="utf-8")


def on_page_content(html: str, **_: Any) -> str:
    """Keep the words of inline code whole, and convert formulas to MathML, which browsers render without scripts."""
    html = _INLINE_CODE.sub(lambda found: f"<code>{_WORD.sub(_whole, found[1])}</code>", html)
    inline = re.compile(r'<(span|div) class="arithmatex">\\\((.*?)\\\)</\1>', re.DOTALL)
    block = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
    html = inline.sub(lambda found: _mathml(found[2]), html)
    return block.sub(lambda found: _mathml(found[1], display="block"), html)


def _whole(word: re.Match[str]) -> str:
    """Return a word that does not break at its hyphens, such as --minutes, unless it is too long for a phone."""
    return f'<span class="word">{word[0]}</span>' if len(word[0]) <= _PHONE else word[0]


def _mathml(tex: str, **settings: str) -> str:
    # Replace the converter's set minus sign, which few fonts have, by the common one.
    return str(convert(unescape(tex).strip(), **settings)).replace("&#x029F5;", "&#x02216;")
