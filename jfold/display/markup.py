# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG as text, with all that is no markup escaped, and their stylesheet.

Colours are those of the page where it says them, as Jupyter, VS Code and the themes of
Sphinx do. Elsewhere the system decides, and a display brings its own background.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# What XML, and so SVG in a file, may not hold even escaped; and lone surrogates.
_FORBIDDEN = re.compile('[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')
# Per line: a name, the colour on light, the colour on dark, and variables of pages, of
# which the first that a page defines replaces these colours.
_COLOURS = """
back #ffffff #14171c jp-layout-color0 vscode-editor-background pst-color-background
panel #eee #222 jp-cell-editor-background vscode-sideBar-background pst-color-surface
text #1f2328 #e4e9ee jp-content-font-color1 vscode-editor-foreground pst-color-text-base
muted #5f6873 #98a2ae jp-content-font-color2 vscode-descriptionForeground
line #c9d0d7 #434c57 jp-border-color1 vscode-editorWidget-border pst-color-border
accent #1b6ec2 #58a6ff jp-brand-color1 vscode-textLink-foreground pst-color-primary
bad #c62828 #ff7b72 jp-error-color1 vscode-errorForeground pst-color-danger
keyword #a626a4 #d8a0f0 jp-mirror-editor-keyword-color
string #2e7d32 #8fce8f jp-mirror-editor-string-color
number #b05a00 #f0b070 jp-mirror-editor-number-color
comment #5f7a84 #8a9faa jp-mirror-editor-comment-color
"""
_RULES = """
.jfold { color: var(--jf-text); background: var(--jf-back); }
div.jfold { font: 13px/1.45 system-ui, sans-serif; padding: 6px 8px; overflow-x: auto; }
.jfold .jf-head { margin-bottom: 4px; }
.jfold .jf-title { font-weight: 650; }
.jfold td, .jfold pre, .jfold .jf-code { color: var(--jf-text);
  font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px; }
.jfold .jf-type { color: var(--jf-accent); }
.jfold .jf-head, .jfold .jf-muted, .jfold summary { color: var(--jf-muted); }
.jfold .jf-head .jf-title { color: var(--jf-text); }
.jfold .jf-bad { color: var(--jf-bad); font-weight: 650; }
.jfold .jf-mark { outline: 1.5px solid var(--jf-bad); border-radius: 3px;
  padding: 0 3px; }
.jfold .jf-keyword { color: var(--jf-keyword); }
.jfold .jf-string { color: var(--jf-string); }
.jfold .jf-number { color: var(--jf-number); }
.jfold .jf-comment { color: var(--jf-comment); font-style: italic; }
.jfold table { border-collapse: collapse; border: 0; margin: 2px 0 6px; color: inherit;
  font-size: 12px; }
.jfold tr { background: none !important; }
.jfold th, .jfold td { padding: 1px 14px 1px 0; white-space: pre; border: 0;
  max-width: none; vertical-align: top; background: none; }
.jfold th { font-weight: 500; color: var(--jf-muted);
  border-bottom: 1px solid var(--jf-line); }
.jfold .jf-l { text-align: left; }
.jfold .jf-r { text-align: right; font-variant-numeric: tabular-nums; }
.jfold .jf-indent { display: inline-block; height: 1.6em; margin: -0.2em 0;
  vertical-align: middle; background: repeating-linear-gradient(to right,
  transparent 0 0.4em, var(--jf-line) 0.4em calc(0.4em + 1px),
  transparent calc(0.4em + 1px) 1.2em); }
.jfold summary { cursor: pointer; }
.jfold details { margin: 2px 0; }
.jfold details details, .jfold details .jf-leaf { margin: 0 0 0 1.25em; }
.jfold pre { background: var(--jf-panel); border-radius: 4px; margin: 4px 0;
  padding: 8px 10px; overflow-x: auto; line-height: 1.4; white-space: pre; }
svg.jfold { margin-right: 24px; }
svg.jfold text { fill: var(--jf-text); text-anchor: middle;
  font: 12px ui-monospace, Menlo, Consolas, monospace; }
svg.jfold text.jf-l { text-anchor: start; }
svg.jfold text.jf-muted { fill: var(--jf-muted); font-size: 10.5px; }
svg.jfold .jf-box { fill: var(--jf-panel); stroke: var(--jf-line); }
svg.jfold .jf-loop { fill: var(--jf-panel); stroke: var(--jf-accent); }
svg.jfold .jf-spare { fill: var(--jf-accent); fill-opacity: 0.15; }
svg.jfold .jf-rows { fill: var(--jf-accent); fill-opacity: 0.5; }
svg.jfold .jf-band { stroke: var(--jf-line); stroke-dasharray: 2 4; }
svg.jfold .jf-edge { fill: none; stroke: var(--jf-muted); stroke-opacity: 0.7; }
svg.jfold .jf-back { fill: none; stroke: var(--jf-accent); stroke-dasharray: 4 3; }
"""


def _variables(shade: int) -> str:
    """Return a CSS rule with all colours; `shade` is 1 for light, 2 for dark."""
    lines = []
    for name, *colours in map(str.split, _COLOURS.strip().splitlines()):
        value = colours[shade - 1]
        for variable in reversed(colours[2:]):
            value = f'var(--{variable}, {value})'
        lines.append(f'--jf-{name}: {value};')
    return f'.jfold {{ {" ".join(lines)} }}'


_DARK = f'@media (prefers-color-scheme: dark) {{ {_variables(2)} }}'


class Markup(str):
    """A string of HTML or SVG, which `escaped` returns as it is."""

    __slots__ = ()


STYLE = Markup(f'<style>{_variables(1)}\n{_DARK}{_RULES}</style>')


def escaped(text: object) -> Markup:
    """Return an object's text, escaped for HTML; a `Markup` is returned unchanged."""
    if type(text) is Markup:
        return text
    return Markup(html.escape(_FORBIDDEN.sub('\ufffd', str(text))))


def joined(parts: Iterable[object], between: str = '') -> Markup:
    """Return `parts`, texts and markup, as one markup with text `between` them."""
    return Markup(escaped(between).join(map(escaped, parts)))


def element(tag: str, *parts: object, **attributes: object) -> Markup:
    """Return element `tag` around `parts`; an attribute that is `None` is left out.

    >>> element('b', 'a < b', class_='jf-title')
    '<b class="jf-title">a &lt; b</b>'
    """
    pairs = ((name.rstrip('_'), x) for name, x in attributes.items() if x is not None)
    text = ''.join(f' {name}="{escaped(x)}"' for name, x in pairs)
    return Markup(f'<{tag}{text}>{joined(parts)}</{tag}>')


def span(kind: str, *parts: object) -> Markup:
    """Return a `<span>` around parts, styled by the stylesheet's class `jf-<kind>`."""
    return element('span', *parts, class_=f'jf-{kind}')


def line(kind: str, *parts: object) -> Markup:
    """Return a `<div>` of class `jf-<kind>` around parts; '' if all are empty."""
    return element('div', *parts, class_=f'jf-{kind}') if any(parts) else Markup('')


def more(count: int, what: str) -> Markup:
    """Return a line that says `count` more `what` are left out; '' for none."""
    return line('muted', f'… {count:,} more {what}' if count > 0 else '')


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    form: str,
    left_out: int = 0,
    what: str = 'rows',
) -> Markup:
    """Return a table, and a line below it if `left_out` of `what` are not shown.

    `form` has 'l' (text) or 'r' (numbers) for each column.
    """

    def row(tag: str, cells: Sequence[object]) -> Markup:
        pairs = zip(cells, form, strict=True)
        return element('tr', *(element(tag, x, class_=f'jf-{a}') for x, a in pairs))

    lines = [row('th', head)] if head else []
    lines += [row('td', cells) for cells in rows]
    return joined([element('table', *lines), more(left_out, what)])


def folded(title: object, *body: object, opened: bool = False) -> Markup:
    """Return a collapsible section with a title, closed unless `opened`."""
    state = 'open' if opened else None
    return element('details', element('summary', title), *body, open=state)


def page(name: str, facts: Iterable[object], *body: object) -> Markup:
    """Return a display: a title, `name` and `facts` on the object, then `body`."""
    head = joined([span('title', name), *(x for x in facts if x)], ' · ')
    return element('div', STYLE, line('head', head), *body, class_='jfold')
