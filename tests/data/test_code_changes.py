# SPDX-License-Identifier: Apache-2.0
"""Code that changes after examples were traced: an old corpus is refused."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import jfold as jf
from jfold.data.fingerprint import _names, code_of, contents, fingerprint

WORDS = """
import functools
import helpers


def scale(x):
    return x * {0}


class Base:
    def read(self, x):
        return scale(x)


class Reader(Base):
    unit = {1}

    @staticmethod
    def also(x):
        return x * {2}

    @classmethod
    def third(cls, x):
        return x * {3}

    @property
    def scale(self):
        return {4}

    @functools.cached_property
    def cached(self):
        return {5}


reader = Reader()


def by_instance(x):
    return reader.read(x)


def by_class_data(x):
    return Reader.unit * x


def by_static_method(x):
    return Reader.also(x)


def by_class_method(x):
    return Reader.third(x)


def by_property(x):
    return Reader().scale * x


def by_cached_property(x):
    return Reader().cached * x


def by_module(x):
    return helpers.inner.double(x)


def by_call(x):
    return scale(x)
"""
INNER = 'def double(x):\n    return x * {0}\n\n\ndef other(x):\n    return x * {1}\n'
# By function, the number of `WORDS` that matters to it.
MATTERS = {
    'by_instance': 0,
    'by_class_data': 1,
    'by_static_method': 2,
    'by_class_method': 3,
    'by_property': 4,
    'by_cached_property': 5,
    'by_call': 0,
}


class Modules:
    """Modules of a user, written anew and loaded again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / 'helpers').mkdir()
        (folder / 'helpers' / '__init__.py').write_text('from helpers import inner\n')

    def load(
        self, words: list[int] | None = None, inner: tuple[int, int] = (2, 2)
    ) -> Any:
        """Return module `words_of_user` with these numbers in it."""
        (self.folder / 'helpers' / 'inner.py').write_text(INNER.format(*inner))
        text = WORDS.format(*(words or [2] * 6))
        (self.folder / 'words_of_user.py').write_text(text)
        for name in ('words_of_user', 'helpers', 'helpers.inner'):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module('words_of_user')


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    yield Modules(tmp_path)
    for name in ('words_of_user', 'helpers', 'helpers.inner'):
        sys.modules.pop(name, None)


def model_of(fn: Any) -> jf.Model:
    return jf.compile(jf.InputTransform(fn) >> jf.Scalar())


@pytest.mark.parametrize('name', MATTERS)
def test_functions_that_are_reached_through_a_class_count(
    name: str, modules: Modules, tmp_path: Path
) -> None:
    """Through its instances, its bases, and each kind of method."""
    path = tmp_path / 'corpus.jfold'
    model_of(getattr(modules.load(), name)).trace([1.0]).save(path)
    again = model_of(getattr(modules.load(), name))
    assert again.predict({}, jf.Corpus.load(path, again)).tolist() == [2.0]
    numbers = [2] * 6
    numbers[MATTERS[name]] = 10
    changed = model_of(getattr(modules.load(numbers), name))
    assert changed.predict({}, [1.0]).tolist() == [10.0]
    with pytest.raises(ValueError, match=f'with a different `{name} = {name}`'):
        jf.Corpus.load(path, changed)


def test_functions_of_modules_count_that_are_named(modules: Modules) -> None:
    """In a package too; others of the module do not."""
    plain = contents(modules.load().by_module)
    assert contents(modules.load(inner=(2, 10)).by_module) == plain
    assert contents(modules.load(inner=(10, 2)).by_module) != plain


FIRST = 'def inner(x): return 2 * x\ndef outer(x): return inner(x)\n'
SECOND = 'def inner(x): return 10 * x\n'


def test_a_corpus_remembers_what_it_was_traced_by(tmp_path: Path) -> None:
    """Though the function that was redefined is one that another calls."""
    scope: dict[str, Any] = {}
    exec(FIRST, scope)
    old = model_of(scope['outer'])
    corpus = old.trace([1.0])
    exec(SECOND, scope)
    new = model_of(scope['outer'])
    assert new.predict({}, [1.0]).tolist() == [10.0]
    path = tmp_path / 'corpus.jfold'
    for use in (
        lambda: new.predict({}, corpus),
        lambda: next(new.batches(corpus, 1)),
        lambda: new.join([corpus]),
        lambda: old.join([corpus, old.trace([1.0])]),
        lambda: corpus.save(path),
    ):
        with pytest.raises(ValueError, match='some that were defined anew since'):
            use()
    assert not path.exists()
    exec(FIRST, scope)
    same = model_of(scope['outer'])
    corpus.save(path)
    assert same.predict({}, jf.Corpus.load(path, same)).tolist() == [2.0]
    assert same.predict({}, same.join([corpus, same.trace([3.0])])).tolist() == [2, 6]


def test_code_of_another_python_is_not_compared() -> None:
    """As of a corpus that was pickled there."""
    model = model_of(lambda x: x)
    corpus = replace(model.trace([1.0]), code='3.10 0123456789abcdef')
    assert len(model.join([corpus])) == 1


def test_tables_may_grow_while_examples_are_traced(tmp_path: Path) -> None:
    """What counts is how they are when a file is written."""
    numbers: dict[str, int] = {}
    model = model_of(lambda word: numbers.setdefault(word, len(numbers)))
    first, second = model.trace(['a']), model.trace(['b', 'a'])
    first.save(tmp_path / '0.jfold')
    second.save(tmp_path / '1.jfold')
    both = jf.Corpus.load(tmp_path, model)
    assert model.predict({}, both).tolist() == [0, 1, 0]
    assert model.predict({}, model.join([first, second])).tolist() == [0, 1, 0]


def test_functions_in_small_tables_count() -> None:
    """Of those in large ones only data would be looked at for long."""

    def reading(table: Any) -> str:
        return code_of(model_of(lambda x: table[0](x) + 1).program)

    def one(x: float) -> float:
        return x

    def other(x: float) -> float:
        return -x

    for few, many in (([one], [other]), ({0: one}, {0: other})):
        assert reading(few) != reading(many)
    assert reading([one, 3]) == reading([one, 4])
    assert reading([one] * 300) == reading([other] * 300)


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError('unbound')


UNUSUAL = {
    'a lock': threading.Lock(),
    'a proxy': Unreadable(),
    'a key': jax.random.key(0),
    'a class of no module': type('Moduleless', (), {'__module__': None}),
}


@pytest.mark.parametrize('name', UNUSUAL)
def test_whatever_functions_name_examples_are_traced(name: str) -> None:
    """Only what writes a file has to read all of it."""
    scope = {'value': UNUSUAL[name]}
    exec('def fn(x): return (value, x)[1]', scope)
    model = model_of(scope['fn'])
    assert len(model.join([model.trace([1.0]), model.trace([2.0])])) == 2


def test_fingerprints_cost_little_for_many_classes() -> None:
    """What their methods name is read once."""
    scope: dict[str, Any] = {}
    for k in range(60):
        methods = (
            f'    def m{n}(self): return self.m{n + 1} if Leaf{(k + 1) % 60} else 1\n'
            for n in range(15)
        )
        exec(f'class Leaf{k}:\n' + ''.join(methods), scope)
        exec(f'def read{k}(x): return Leaf{k}().m0() and 1.0\n', scope)
    reads = [jf.InputTransform(scope[f'read{k}']) >> jf.Scalar() for k in range(60)]
    model = jf.compile(jf.AllOf(*reads))
    before = _names.cache_info().misses
    fingerprint(model.program)
    code_of(model.program)
    assert _names.cache_info().misses - before <= 60 * 16
