"""Sphinx extension: formulas become MathML while the book is built, so pages need no script and no network.

Browsers draw MathML themselves. MathJax, the usual choice, is loaded from another host by every page.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import SphinxError
from sphinx.util.math import get_node_equation_number

# `aligned` inside a display formula is `align*` to the converter
_SYNONYMS = {r"{aligned}": r"{align*}", r"{split}": r"{align*}"}
_LEFTOVER = re.compile(r"<m[ion]>(\\|&(?!#?\w+;))[^<]*")  # what the converter did not understand, passed on as text


def mathml(latex, display="inline"):
    """`<math>` element of a LaTeX formula. `display` is "inline" or "block". Raises ValueError, naming the formula."""
    source = latex.strip()
    for name, known in _SYNONYMS.items():
        source = source.replace(name, known)
    try:
        element = convert(source, display=display)
    except Exception as error:  # the converter raises many kinds, each a fault of the formula
        raise ValueError(f"formula {latex.strip()!r}: {type(error).__name__} {error}") from None
    leftover = _LEFTOVER.search(element)
    if leftover:
        raise ValueError(f"formula {latex.strip()!r}: {leftover.group(0)[4:]!r} has no MathML; write it another way")
    element = element.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # \sim comes out as a keyboard tilde
    return re.sub(r"(<mi>(?:log|ln|exp)</mi>)(?!<mo|</)", r'\1<mspace width="0.167em" />', element)  # log 2, not log2


def _convert(writer, node, display):
    try:
        return mathml(node.astext(), display)
    except ValueError as error:
        raise SphinxError(f"{node.source or writer.builder.current_docname}:{node.line or '?'}: {error}") from None


def _visit_inline(writer, node):
    writer.body.append(_convert(writer, node, "inline"))
    raise nodes.SkipNode


def _visit_block(writer, node):
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:  # the theme shows it on the right
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(_convert(writer, node, "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
