# SPDX-License-Identifier: Apache-2.0
"""What displays say: their markup, read with the standard library."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf

SPACE = '{http://www.w3.org/2000/svg}'
OF_HTML = set('div span style table tr th td details summary pre'.split())
OF_SVG = set('svg style title text rect path'.split())
ATTRIBUTES = set('class style open width height viewBox role x y rx d'.split())


def read(markup: str) -> ET.Element:
    """The tree of a display, which has to be well-formed and of known elements."""
    root = ET.fromstring(markup)
    for each in root.iter():
        known = OF_SVG if SPACE in each.tag else OF_HTML
        assert each.tag.removeprefix(SPACE) in known, each.tag
        assert set(each.attrib) <= ATTRIBUTES, each.attrib
    return root


def words(element: ET.Element) -> str:
    """The text in an element, spaces and lines made one."""
    return ' '.join(''.join(element.itertext()).split())


def rows(root: ET.Element) -> list[list[str]]:
    """The cells of all tables."""
    return [[words(cell) for cell in row] for row in root.iter('tr')]


def texts(root: ET.Element) -> list[str]:
    """The texts of all pictures."""
    return [words(each) for each in root.iter(f'{SPACE}text') if words(each)]


def html(thing: Any) -> str:
    """The display of a thing."""
    shown: str = thing._repr_html_()
    assert shown is not None
    return shown


def cell(weight: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(weight @ (left + right))


def small_model() -> jf.Model:
    """Trees of ints, with a metric at the root."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(
        lambda table, word: table[word], lambda key: jnp.ones((8, 4)), name='embed'
    )
    node = jf.Record((tree(), tree())) >> jf.Function(cell, lambda key: jnp.eye(4))
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: node}))
    return jf.compile(tree() >> jf.AllOf(jf.Identity(), jf.Metric('root')))


EXAMPLES = [((1, 2), 3), 4, (5, (6, (7, 1)))]


def applied(model: jf.Model, examples: Any) -> Any:
    """The results of a model with the parameters that it begins with."""
    return model.apply(model.init(jax.random.key(0)), model.schedule(examples))
