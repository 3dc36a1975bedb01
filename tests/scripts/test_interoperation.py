# SPDX-License-Identifier: Apache-2.0
"""The page on data of other packages: its code runs, and what it says besides holds.

A section is tested where its packages are installed. To test all of them, make an
environment with `pip install -e '.[dev,interop]'`, and run
`python -m pytest tests/scripts/test_interoperation.py`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import pickle
import re
import tomllib
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from page_code import code_in, run_as_printed, sections_of
from program_runs import ROOT

import jfold as jf

SECTIONS = sections_of('docs/interoperation.md')
PACKAGES: dict[str, tuple[str, ...]] = {
    "Python's syntax trees": (),
    'NLTK': ('nltk',),
    'spaCy': ('spacy',),
    'NetworkX': ('networkx',),
    'RDKit': ('rdkit',),
    'JSON and dataclasses': (),
    'Pydantic': ('pydantic',),
    'pandas': ('pandas',),
    'Hugging Face datasets': ('datasets',),
    'jraph': ('jraph',),
}


@functools.cache
def after(title: str) -> SimpleNamespace:
    """The names of a section that has run."""
    for package in PACKAGES[title]:
        pytest.importorskip(
            package, reason=f'{package}, whose data are read, is not installed'
        )
    names: dict[str, Any] = {'__name__': 'page'}
    for part in code_in(SECTIONS['']) + code_in(SECTIONS[title]):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_as_printed(part, names, printed.getvalue)
    return SimpleNamespace(**names)


@pytest.mark.parametrize('title', PACKAGES)
def test_sections_print_what_they_say(title: str) -> None:
    """And import what their packages are."""
    code = '\n'.join(code_in(SECTIONS[title]))
    imported = re.findall(r'^(?:import|from) (\w+)', code, re.MULTILINE)
    here = {'numpy', *PACKAGES[title], 'ast', 'dataclasses', 'json', 'typing'}
    assert {*PACKAGES[title]} <= {*imported} <= here
    after(title)


def test_all_sections_are_tested_and_interop_has_their_packages() -> None:
    """RDKit comes with the examples."""
    assert [*SECTIONS] == ['', *PACKAGES]
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    named = project['optional-dependencies']['interop']
    installed = {re.split('[<>=]', package)[0] for package in named}
    assert installed == set(sum(PACKAGES.values(), ())) - {'rdkit'}


def test_trees_of_nltk_as_they_are() -> None:
    """Their words are counted; a model of binary trees refuses them."""
    page = after('NLTK')
    phrase = jf.ForwardDeclaration(output_type=[])
    children = jf.Map(phrase()) >> jf.Sum()
    one = jf.FromTensor(np.float32(1))
    phrase.resolve_to(jf.OneOf(type, {str: one, page.nltk.Tree: children}))
    tree = page.nltk.Tree.fromstring(page.text)
    assert phrase().eval(tree) == len(tree.leaves()) == 5
    assert jf.InputTransform(page.nltk.Tree.label).eval(tree) == 'S'
    tree.chomsky_normal_form()
    with pytest.raises(jf.InputError, match=r'hashable value, .* got Tree'):
        page.model.schedule([tree])


def test_documents_of_spacy() -> None:
    """Documents can be pickled, tokens cannot; and a vocabulary without a language has
    no words in lower case."""
    page = after('spaCy')
    import spacy

    docs = [page.doc, pickle.loads(pickle.dumps(page.doc))]
    one, other = page.model.predict(page.params, docs).to_list()
    np.testing.assert_allclose(one, other, rtol=1e-6)
    with pytest.raises(NotImplementedError, match='Pickling a token'):
        pickle.dumps(page.doc[0])
    read = jf.InputTransform(list) >> jf.GetItem(1) >> jf.GetItem('lower_')
    assert read.eval(page.doc) == ''
    english = type(page.doc)(spacy.blank('en').vocab, ['A', 'Cat'])
    assert read.eval(english) == 'cat'


def test_tokens_of_spacy_are_shared_by_their_number() -> None:
    """Objects differ from one access to the next."""
    doc = after('spaCy').doc
    heads = jf.InputTransform(lambda doc: [token.head for token in doc])
    read = jf.GetItem('i') >> jf.Scalar() >> jnp.tanh
    counts = []
    for key in None, operator.attrgetter('i'):
        model = jf.compile(heads >> jf.Map(jf.Share(read, key)) >> jf.Sum())
        counts.append(int(model.schedule([doc]).counts.sum()))
    assert counts[0] - counts[1] == len(doc) - 3  # which are heads


def test_texts_that_are_no_molecules_are_left_out() -> None:
    page = after('RDKit')
    model = jf.compile(jf.InputTransform(page.read) >> page.model.block)
    from rdkit import rdBase

    with rdBase.BlockLogs():
        corpus = model.trace(['CCO', 'no molecule', 'C'], skip_errors=True)
    assert len(corpus) == 2


@pytest.mark.parametrize(
    ('annotation', 'message'),
    [
        (Decimal, r'expected numbers, texts, .* at `x`'),
        (int | str, r'expected numbers, texts, .* at `x`'),
        (dict[str, int], r'expected a record of at least one field, got none at `x`'),
    ],
)
def test_fields_of_pydantic_without_an_encoder(annotation: Any, message: str) -> None:
    """The error names the field."""
    create = after('Pydantic').pydantic.create_model
    schema = create('Item', x=(annotation, ...)).model_json_schema()
    with pytest.raises(TypeError, match=message):
        jf.layers.RecordEncoder(schema, 8)


def test_tables_of_pandas() -> None:
    """Missing values are zeros, NaN stays NaN, and a table is no list of rows."""
    page = after('pandas')
    products = page.table['price'].fillna(0) * page.table['count']
    expected = products.groupby(page.table['customer']).sum()
    found = page.model.predict({}, page.customers)
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-5)
    (value,) = page.model.predict({}, [[{'price': float('nan'), 'count': 2}]])
    assert np.isnan(value)
    with pytest.raises(jf.InputError, match="expected an item 'price', got 'customer'"):
        page.model.schedule([page.table])


def test_datasets_of_hugging_face() -> None:
    """Of absent fields there are two kinds."""
    from_list = after('Hugging Face datasets').datasets.Dataset.from_list
    assert from_list([{'a': 1, 'b': 2}, {'a': 3}])[1] == {'a': 3, 'b': None}
    assert from_list([{'a': 1}, {'a': 2, 'b': 3}])[1] == {'a': 2}
