# SPDX-License-Identifier: Apache-2.0
"""Arguments of another kind: what is expected of each, where Python would say less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

import jfold as jf
from mistakes.common import Mistake, number

layer = jf.Record({'x': jf.Vector(2)}) >> jf.Function(nn.Dense(3), name='dense')
model = jf.compile(layer)
example = {'x': [1, 2]}


def params() -> Any:
    return model.init(jax.random.key(0))


def size(make: Callable[..., Any], name: str = 'features') -> Mistake:
    """A layer that is given a text for its size."""
    label = f'a text for the size of {make.__name__}'
    message = f"expected `{name}` as int, got 'x'"
    return Mistake(label, lambda: make('x'), message, lacks='do')


MISTAKES = [
    Mistake(
        'an example and parameters the other way round',
        lambda: layer.eval(params(), example),
        "expected `example` and then `params`, got those of ['dense'] as the "
        'example: call `eval(example, params)`',
    ),
    Mistake(
        'a list for parameters of one example',
        lambda: layer.eval(example, [1]),
        'expected `params` as a dict of parameters by layers, got [1] (list): call '
        '`eval(example, params)`',
    ),
    Mistake(
        'an int for the model in which NaN is looked for',
        lambda: jf.find_nan(3, {}, [1]),  # type: ignore[arg-type]
        'expected `model` as a model, got 3: pass what `jfold.compile` returns',
    ),
    Mistake(
        'a number for a loss',
        lambda: jf.find_nan(model, params(), [example], loss=2.5),  # type: ignore[arg-type]
        'expected `loss` as a function of what `Model.apply` returns, got 2.5',
        lacks='do',
    ),
    Mistake(
        'an int for a schedule to explain',
        lambda: model.explain(3),  # type: ignore[arg-type]
        'expected `schedule` as a schedule, got 3: pass what '
        '`model.schedule(examples)` returns',
    ),
    Mistake(
        'an int for batches',
        lambda: model.schedules(3),  # type: ignore[arg-type]
        'expected `batches` as a list of lists of examples, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for what was traced in parts',
        lambda: model.join(3),  # type: ignore[arg-type]
        'expected `parts` as a list of what was traced, got 3: pass `[part]`',
    ),
    Mistake(
        'a text for a step',
        lambda: model.precompile('x', params()),  # type: ignore[arg-type]
        "expected `step` as a function, got 'x': pass it first",
    ),
    Mistake(
        'an int for the path of a corpus',
        lambda: jf.Corpus.load(3, model),  # type: ignore[arg-type]
        'expected `path` as the path of a file, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for schedules to stack',
        lambda: jf.Schedule.stack(3),  # type: ignore[arg-type]
        'expected `schedules` as a list of schedules, got 3: pass what '
        '`model.schedules(batches)` returns',
    ),
    Mistake(
        'an int for the children of a composition',
        lambda: jf.Composition(3),  # type: ignore[arg-type]
        'expected `children` as a list of blocks, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for a function of wires',
        lambda: jf.compose(3),  # type: ignore[arg-type]
        'expected `fn` as a function of wires, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for a recursive function',
        lambda: jf.recursive(3),  # type: ignore[arg-type]
        'expected `fn` as a function of the block it is, got 3',
        lacks='do',
    ),
    Mistake(
        'items of a one-hot vector that are no keys',
        lambda: jf.OneHotFromList([['a'], ['b']]),
        "expected `items` as hashable values, got ['a'] (list): make keys of them "
        'by an InputTransform before',
    ),
    Mistake(
        'a text for the first int of a one-hot vector',
        lambda: jf.OneHot('x'),  # type: ignore[arg-type]
        "expected `start` as int, got 'x'",
        lacks='do',
    ),
    Mistake(
        'an int for the items of a one-hot vector',
        lambda: jf.OneHotFromList(3),  # type: ignore[arg-type]
        'expected `items` as a list, got 3: write `OneHotFromList([...])`',
    ),
    Mistake(
        'a list for an axis',
        lambda: jf.Concat([1]),  # type: ignore[arg-type]
        'expected `concat_dim` as int, got [1] (list)',
        lacks='do',
    ),
    Mistake(
        'a text for a number of rounds',
        lambda: jf.layers.MessagePassing(number, number, rounds='x'),
        "expected `rounds` as int, got 'x'",
        lacks='do',
    ),
    Mistake(
        'a text for edges',
        lambda: jf.layers.MessagePassing(number, number, edges='x'),
        "expected `edges` as bool, got 'x'",
        lacks='do',
    ),
    Mistake(
        'an int for a layer in either direction',
        lambda: jf.layers.Bidirectional(4, 3),
        'expected `make` as a function of a size, such as LSTM, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for known values',
        lambda: jf.layers.Categorical(3),
        'expected `values` as a list of known values, got 3',
        lacks='do',
    ),
    Mistake(
        'an int for what an NNX module draws with',
        lambda: jf.nnx.Fold(number, rngs=3),
        'expected `rngs` as `nnx.Rngs`, got 3: write `rngs=nnx.Rngs(0)`',
    ),
    Mistake(
        'an int for what makes an NNX module',
        lambda: jf.nnx.Cell(3),
        'expected `make` as a function of `nnx.Rngs`, got 3',
        lacks='do',
    ),
    size(jf.layers.Attention),
    size(jf.layers.ChildSumTreeGRU),
    size(jf.layers.ChildSumTreeLSTM),
    size(jf.layers.FC),
    size(jf.layers.GRU),
    size(jf.layers.LSTM),
    size(jf.layers.Weave, 'width'),
]
