"""Griffe extension that converts formulas and examples of docstrings to the site's Markdown."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object


class Formulas(Extension):
    """Extension that converts ``:math:`x``` to ``$x$``, ``.. math::`` blocks to ``$$...$$``, and examples to code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = in_markdown(obj.docstring.value)


def in_markdown(text: str) -> str:
    r"""Convert one docstring.

    Example:
        >>> print(in_markdown("Of :math:`x`:\n\n.. math::\n    a\n    + b\n\nDone."))
        Of $x$:
        <BLANKLINE>
        $$
        a
        + b
        $$
        <BLANKLINE>
        Done.
    """
    # Griffe renders "Example:" as a note, in which Markdown takes >>> for a quotation.
    text = re.sub(r"^([ ]*)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^::\n\n", "", text, flags=re.MULTILINE)  # the indented block is code anyway
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"^([ ]*)\.\. math:: (.+)$", r"\1$$\n\1\2\n\1$$", text, flags=re.MULTILINE)
    block = re.compile(r"^([ ]*)\.\. math::\n((?:\1[ ]+.*\n?|[ ]*\n)+)", re.MULTILINE)
    return block.sub(_block, text)


def _block(found: re.Match[str]) -> str:
    inner = textwrap.dedent(found[2]).strip("\n").rstrip()
    lines = textwrap.indent(f"$$\n{inner}\n$$", found[1])
    return f"{lines}\n\n"
