# SPDX-License-Identifier: Apache-2.0
"""The page on data of other packages: its code runs, and its values are right.

A section is tested where its packages are installed. To test all of them, make an
environment with `pip install -e '.[dev,interop]'`, and run
`python -m pytest tests/scripts/test_interoperation.py`. Values are computed again from
the parameters and the objects of the package, without jfold.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import json
import operator
import pickle
import random
import re
import tomllib
import zlib
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
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
    """The names of a section that has run, its parameters as NumPy arrays."""
    for package in PACKAGES[title]:
        pytest.importorskip(
            package, reason=f'{package}, whose data are read, is not installed'
        )
    names: dict[str, Any] = {'__name__': 'page'}
    for part in code_in(SECTIONS['']) + code_in(SECTIONS[title]):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_as_printed(part, names, printed.getvalue)
    params = jax.tree.map(np.asarray, names.get('params', {}))
    return SimpleNamespace(**names | {'params': params})


def close(values: Any, expected: Any) -> None:
    """Assert that arrays are equal, up to rounding."""
    np.testing.assert_allclose(values, np.array(expected), rtol=1e-5, atol=1e-6)


def dense(layer: Any, *parts: Any) -> Any:
    """The affine map of a layer, of vectors and numbers, joined."""
    x = np.concatenate([np.atleast_1d(part) for part in parts])
    return x @ layer['Dense_0']['kernel'] + layer['Dense_0']['bias']


def relu(x: Any) -> Any:
    """The positive part."""
    return np.maximum(x, 0)


def sigmoid(x: Any) -> Any:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def total(vectors: Any) -> Any:
    """The sum of vectors of length 8, zeros if there are none."""
    return sum(vectors, np.zeros(8))


def test_all_sections_are_tested_and_interop_has_their_packages() -> None:
    """RDKit comes with the examples."""
    assert [*SECTIONS] == ['', *PACKAGES]
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    named = project['optional-dependencies']['interop']
    installed = {re.split('[<>=]', package)[0] for package in named}
    assert installed == set(sum(PACKAGES.values(), ())) - {'rdkit'}
    for title, packages in PACKAGES.items():
        code = '\n'.join(code_in(SECTIONS[title]))
        imported = re.findall(r'^(?:import|from) (\w+)', code, re.MULTILINE)
        here = {'numpy', *packages, 'ast', 'dataclasses', 'json', 'typing'}
        assert {*packages} <= {*imported} <= here


def test_syntax_trees() -> None:
    page = after("Python's syntax trees")

    def state(node: ast.AST) -> Any:
        own = page.params['embed']['embedding'][page.classes.index(type(node))]
        below = total(map(state, ast.iter_child_nodes(node)))
        return relu(dense(page.params['fc'], own, below))

    programs = [*page.programs, ast.parse('class A:\n    x: int = [1, -2][0]')]
    expected = [dense(page.params['fc_1'], state(program)) for program in programs]
    close(page.model.predict(page.params, programs), expected)


# ---- sentences -----------------------------------------------------------------------


@pytest.mark.long
def test_trees_of_nltk() -> None:
    page = after('NLTK')

    def state(tree: Any) -> Any:
        if isinstance(tree[0], str):
            row = page.params['embed']['embedding'][page.words.index(tree[0])]
            return page.leaf.apply({'params': page.params['TreeLSTMLeaf']}, row)
        below = map(state, tree)
        return page.cell.apply({'params': page.params['TreeLSTMCell']}, *below)

    expected = [dense(page.params['fc'], state(tree)[1]) for tree in page.trees]
    close(page.model.predict(page.params, page.trees), expected)


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
    """Trees are those of the heads; documents can be pickled, tokens cannot."""
    page = after('spaCy')
    params, size = page.params, len(page.words)

    def state(token: int) -> Any:
        word = params['embed']['embedding'][token]
        relation = page.relations.index(page.deps[token])
        x = np.concatenate([word, params['embed_1']['embedding'][relation]])
        below = [k for k in range(size) if page.heads[k] == token != k]
        states = [state(k) for k in below]
        gates = [sigmoid(dense(params['forget'], x, h) + 1) for _, h in states]
        memory = total(gate * c for gate, (c, _) in zip(gates, states, strict=True))
        joined = dense(params['join'], x, total(h for _, h in states))
        write, show, new = np.split(joined, 3)
        memory = sigmoid(write) * np.tanh(new) + memory
        return memory, sigmoid(show) * np.tanh(memory)

    docs = [page.doc, pickle.loads(pickle.dumps(page.doc))]
    for sentences in page.model.predict(params, docs).to_list():
        close(sentences, [state(2)[1], state(4)[1]])
    with pytest.raises(NotImplementedError, match='Pickling a token'):
        pickle.dumps(page.doc[0])


def test_words_of_spacy_in_lower_case() -> None:
    """A vocabulary without a language has none."""
    doc = after('spaCy').doc
    import spacy

    read = jf.InputTransform(list) >> jf.GetItem(1) >> jf.GetItem('lower_')
    assert read.eval(doc) == ''
    assert read.eval(type(doc)(spacy.blank('en').vocab, ['A', 'Cat'])) == 'cat'


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


# ---- graphs --------------------------------------------------------------------------


def test_graphs_of_networkx() -> None:
    """The longest path that NetworkX finds, its hours on edges, is the duration."""
    page = after('NetworkX')
    nx, rng = page.nx, random.Random(0)

    def longest(graph: Any) -> float:
        timed = nx.DiGraph()
        for task, hours in graph.nodes(data='hours'):
            before = ['begin', *graph.predecessors(task)]
            timed.add_weighted_edges_from((x, task, hours) for x in before)
        return nx.dag_longest_path_length(timed)

    graphs = [page.project]
    for size in range(1, 9):
        pairs = itertools.combinations(range(size), 2)
        graph = nx.DiGraph(pair for pair in pairs if rng.random() < 0.4)
        graph.add_nodes_from((n, {'hours': rng.randrange(1, 9)}) for n in range(size))
        graphs.append(graph)
    close(page.model.predict({}, graphs), [*map(longest, graphs)])


@pytest.mark.long
def test_molecules_of_rdkit() -> None:
    """Neighbours are those that RDKit tells of each atom."""
    page = after('RDKit')
    params = page.params
    cell = nn.GRUCell(8), {'params': params['update']['GRUCell_0']}

    def value(smiles: str) -> Any:
        atoms = list(page.Chem.MolFromSmiles(smiles).GetAtoms())
        states = [params['embed']['embedding'][x.GetAtomicNum()] for x in atoms]
        for _ in range(2):
            messages = [
                total(
                    relu(dense(params['fc'], states[other], bond.GetBondTypeAsDouble()))
                    for bond in atom.GetBonds()
                    for other in [bond.GetOtherAtomIdx(atom.GetIdx())]
                )
                for atom in atoms
            ]
            states = [
                cell[0].apply(cell[1], state, message)[0]
                for state, message in zip(states, messages, strict=True)
            ]
        return dense(params['fc_1'], total(states))

    texts = ['CCO', 'Cc1ccccc1', 'C', 'OC(=O)C=C', '[Na+].[Cl-]']
    molecules = [page.read(smiles) for smiles in texts]
    close(page.model.predict(params, molecules), [*map(value, texts)])


def test_texts_that_are_no_molecules_are_left_out() -> None:
    page = after('RDKit')
    model = jf.compile(jf.InputTransform(page.read) >> page.model.block)
    from rdkit import rdBase

    with rdBase.BlockLogs():
        corpus = model.trace(['CCO', 'no molecule', 'C'], skip_errors=True)
    assert len(corpus) == 2
    values = model.predict(page.params, ['CCO', 'C'])
    expected = page.model.predict(page.params, [*map(page.read, ['CCO', 'C'])])
    close(values, expected)


def test_graphs_of_jraph() -> None:
    """Edges may be none; batches of jraph are taken apart, padding included."""
    page = after('jraph')
    rng = np.random.default_rng(0)

    def graph(nodes: int, edges: int) -> Any:
        return page.graph._replace(
            nodes=rng.normal(size=(nodes, 2)).astype('float32'),
            edges=rng.normal(size=edges).astype('float32'),
            senders=rng.integers(nodes, size=edges),
            receivers=rng.integers(nodes, size=edges),
            n_node=np.array([nodes]),
            n_edge=np.array([edges]),
        )

    def sums(graph: Any) -> Any:
        states = graph.nodes.copy()
        sent = graph.nodes[graph.senders] * graph.edges[:, None]
        np.add.at(states, graph.receivers, sent)
        return states

    graphs = [page.graph, graph(4, 7), graph(1, 0), graph(5, 12)]
    padded = page.jraph.pad_with_graphs(page.jraph.batch(graphs), 20, 30, 8)
    batch = page.jraph.unpad_with_graphs(padded)
    apart = jax.device_get(page.jraph.unbatch(batch))
    for examples in graphs, apart:
        results = page.model.predict({}, examples).to_list()
        for states, example in zip(results, graphs, strict=True):
            close(states, sums(example))


# ---- records and tables --------------------------------------------------------------


def encoded(params: Any, *fields: Any) -> Any:
    """The vector of a record of the vectors of its fields."""
    return relu(dense(params['record'], *fields))


def test_records_of_json() -> None:
    """Objects and dicts have the vector that the parameters of their fields say."""
    page = after('JSON and dataclasses')
    params = page.params

    def part(x: Any) -> Any:
        kind = params['kind']['embedding'][['plate', 'screw'].index(x['kind'])]
        weight = dense(params['weight'], x['weight'])
        note = np.zeros(8)
        if x['note'] is not None:
            row = zlib.crc32(x['note'].encode()) % 4096
            note = params['note']['embedding'][row]
        return encoded(params, kind, weight, note, total(map(part, x['parts'])))

    record = json.loads(page.text)
    expected = dense(params['fc'], part(record))
    plate = page.Part('plate', 2.5, None, [page.screw])
    close(page.model.predict(params, [record, plate]), [expected] * 2)


def test_models_of_pydantic() -> None:
    """A property that is absent is one without items."""
    page = after('Pydantic')
    params = page.params

    def item(x: Any) -> Any:
        kind = params['kind']['embedding'][['book', 'game'].index(x.kind)]
        price = dense(params['priceInEuro'], x.price)
        return encoded(params, kind, price, total(map(item, x.bundled)))

    expected = [dense(params['fc'], item(x)) for x in page.items]
    close(page.model.predict(params, page.examples), expected)


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
    close(page.model.predict({}, page.customers), expected.astype(float))
    (value,) = page.model.predict({}, [[{'price': float('nan'), 'count': 2}]])
    assert np.isnan(value)
    with pytest.raises(jf.InputError, match="expected an item 'price', got 'customer'"):
        page.model.schedule([page.table])


def test_datasets_of_hugging_face() -> None:
    """They stand for lists of examples; of absent fields there are two kinds."""
    page = after('Hugging Face datasets')
    table = page.params['embed']['embedding']
    expected = [
        dense(
            page.params['fc'],
            np.mean([table[page.words.index(word)] for word in row['tokens']], 0),
        )
        for row in page.rows
    ]
    close(page.model.predict(page.params, page.dataset), expected)
    close(page.model.apply(page.params, page.batch.schedule), expected)
    from_list = page.datasets.Dataset.from_list
    assert from_list([{'a': 1, 'b': 2}, {'a': 3}])[1] == {'a': 3, 'b': None}
    assert from_list([{'a': 1}, {'a': 2, 'b': 3}])[1] == {'a': 2}
