# SPDX-License-Identifier: Apache-2.0
"""`apply` under the transformations of JAX: the rows of `docs/transformations.md`."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from binary_trees import binary, binary_tree, chain, tree_block
from jax import lax
from jax.sharding import AxisType
from transformed import (
    PAIRS,
    RNG,
    TREES,
    agrees_in_float64,
    direction,
    eager,
    loss,
    model,
    params,
    schedule,
    stacked,
)

import jfold as jf

OTHERS = [*(binary_tree(RNG, n) for n in (6, 2, 3)), chain(4)]


@functools.cache
def expected(seed: int = 0, other: bool = False) -> Any:
    """The value of the eager twin and its gradient."""
    twin = functools.partial(eager, trees=OTHERS if other else TREES)
    return interpreter.called(jax.value_and_grad(twin), params(seed))


def test_jit() -> None:
    """With the schedule as an argument or as a constant."""
    want = jnp.stack([model().eval(tree, params()) for tree in TREES])
    close(jax.jit(model().apply)(params(), schedule()), want, 1e-5)
    closed = jax.jit(lambda p: model().apply(p, schedule()))
    close(closed(params()), want, 1e-5)


def test_grad_and_value_and_grad() -> None:
    """Inside and outside of `jit`."""
    close(jax.value_and_grad(loss)(params(), schedule()), expected(), 1e-5)
    close(jax.jit(jax.grad(loss))(params(), schedule()), expected()[1], 1e-5)


def mapped(function: Any) -> Any:
    """As `vectorized`, one after another."""
    return jax.jit(functools.partial(lax.map, function))


def vectorized(function: Any) -> Any:
    """All at once, in one program."""
    return jax.jit(jax.vmap(function))


@pytest.mark.parametrize('mapping', [vectorized, mapped])
def test_mapped_over_parameters(mapping: Any) -> None:
    """An ensemble, one schedule: values and gradients."""
    members = stacked([params(i) for i in range(3)])
    found = mapping(lambda p: jax.value_and_grad(loss)(p, schedule()))(members)
    close(found, stacked([expected(i) for i in range(3)]), 1e-5)


def test_an_ensemble_has_the_loops_of_one_member() -> None:
    each = jax.vmap(jax.grad(loss), (0, None))
    one = jax.jit(jax.grad(loss)).lower(params(), schedule()).as_text()
    many = jax.jit(each).lower(stacked([params()] * 3), schedule()).as_text()
    loops = [text.count('stablehlo.while') for text in (one, many)]
    assert loops[0] == loops[1] > 0


def test_vmap_over_external_arrays() -> None:
    layer = jf.Function(lambda w, x: jnp.tanh(w * x), lambda key, _: jnp.ones(2))
    reader = jf.compile(jf.Map(jf.External('rows', 2) >> layer) >> jf.Sum())
    weights, examples = reader.init(jax.random.key(0)), [[0, 2], [], [1, 1, 0]]
    batch, arrays = reader.schedule(examples), jnp.arange(24.0).reshape(4, 3, 2) / 9

    def apply(rows: Any) -> Any:
        return (reader.apply(weights, batch, external={'rows': rows}) ** 2).sum()

    def twin(rows: Any) -> Any:
        made = [reader.eval(x, weights, external={'rows': rows}) for x in examples]
        return sum((x**2).sum() for x in made)

    got = vectorized(jax.value_and_grad(apply))(arrays)
    want = [interpreter.called(jax.value_and_grad(twin), x) for x in arrays]
    close(got, stacked(want), 1e-5)


@pytest.mark.parametrize('mapping', [vectorized, mapped])
def test_mapped_over_schedules(mapping: Any) -> None:
    both = jf.Schedule.stack(model().schedules([TREES, OTHERS]))
    found = mapping(lambda s: jax.value_and_grad(loss)(params(), s))(both)
    close(found, stacked([expected(other=yes) for yes in (False, True)]), 1e-5)


def test_checkpoint() -> None:
    got = jax.jit(jax.grad(jax.checkpoint(loss)))(params(), schedule())
    close(got, expected()[1], 1e-5)


def test_scan_over_stacked_schedules() -> None:
    def step(weights: Any, schedule: jf.Schedule) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, schedule)
        return jax.tree.map(lambda x, g: x - 0.01 * g, weights, grads), value

    @jax.jit
    def steps(weights: Any, schedules: jf.Schedule) -> Any:
        return lax.scan(step, weights, schedules)

    batches = [TREES, OTHERS, TREES[::-1]]
    got = steps(params(), jf.Schedule.stack(model().schedules(batches)))
    weights, values = params(), []
    for trees in batches:
        of_batch = functools.partial(eager, trees=trees)
        value, grads = interpreter.called(jax.value_and_grad(of_batch), weights)
        weights = jax.tree.map(lambda x, g: x - 0.01 * g, weights, grads)
        values.append(value)
    close(got, (weights, jnp.stack(values)), 1e-5)


def test_shard_map() -> None:
    """With `check_vma=True`, in both modes."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('data',))
    spec = jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec(), spec('data')), out_specs=spec()
    )
    def sharded(params: Any, schedules: Any) -> Any:
        own = jax.tree.map(lambda x: x[0], schedules)
        return lax.psum(loss(params, own), 'data')

    one = jf.Schedule.stack([schedule()])
    close(jax.jit(jax.value_and_grad(sharded))(params(), one), expected(), 1e-5)
    moving = params(), direction(params())

    def pushed(params: Any, tangent: Any) -> Any:
        return jax.jvp(lambda p: sharded(p, one), (params,), (tangent,))

    def pushed_twin(params: Any, tangent: Any) -> Any:
        return jax.jvp(eager, (params,), (tangent,))

    close(jax.jit(pushed)(*moving), interpreter.called(pushed_twin, *moving), 1e-4)


def test_what_was_traced_in_a_shard_map_stays_there() -> None:
    """A later program on the same mesh, with `check_vma=False` before, has its own."""
    mesh = jax.make_mesh((2,), ('data',), (AxisType.Auto,), devices=jax.devices()[:2])
    of_loss = jax.value_and_grad(loss)
    alone = jax.shard_map(
        of_loss, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False
    )
    close(jax.jit(alone)(params(), schedule()), expected(), 1e-5)
    placed = jax.device_put(schedule(), jax.NamedSharding(mesh, jax.P()))
    close(jax.jit(of_loss)(params(), placed), expected(), 1e-5)


def pushed_by(loss: Any) -> Any:
    """A gradient along a direction."""
    return lambda p, along: jax.jvp(jax.grad(loss), (p,), (along,))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('kind', [AxisType.Auto, AxisType.Explicit])
def test_set_mesh(kind: AxisType) -> None:
    """Types that say how arrays lie are those of a schedule that lies nowhere, too."""
    mesh = jax.make_mesh((2,), ('data',), (kind,))
    batch, given, want = schedule(), params(), expected()
    moving = given, direction(given)
    where = jax.NamedSharding(mesh, jax.P(None, 'data'))
    even = lambda x: x.ndim > 1 and not x.shape[1] % 2  # noqa: E731
    both = jax.jit(jax.value_and_grad(loss))
    with jax.set_mesh(mesh):
        spread = jax.tree.map(
            lambda x: jax.device_put(x, where) if even(x) else x, given
        )
        for weights, made in (given, batch), (spread, schedule()):
            close(both(weights, made), want, 1e-5)
        of_batch = jax.jit(pushed_by(lambda p: loss(p, batch)))
        pushed = jax.device_get(of_batch(*moving))
    close(pushed, interpreter.called(pushed_by(eager), *moving), 1e-4)


def test_eval_shape() -> None:
    """Nothing runs; parameters may be shapes as well."""
    shapes = jax.eval_shape(model().init, jax.random.key(0))
    value, grads = jax.eval_shape(jax.value_and_grad(loss), shapes, schedule())
    assert (value.shape, value.dtype) == ((), 'float32')
    assert jax.tree.map(lambda x: x.shape, grads) == jax.tree.map(
        lambda x: x.shape, params()
    )


def test_ahead_of_time() -> None:
    """By `precompile`, and by `lower` and `compile` as JAX has them."""
    own = jf.compile(model().block)
    grad = jax.grad(lambda p, s: (own.apply(p, s) ** 3).sum())
    ready = own.precompile(grad, params(), own.trace(TREES).capacities(4))
    want = expected()[1]
    close(ready(params(), own.schedule(TREES)), want, 1e-5)
    lowered = jax.jit(jax.grad(loss)).lower(params(), schedule())
    close(lowered.compile()(params(), schedule()), want, 1e-5)


def test_donation() -> None:
    """Of parameters, for those that a step returns."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights: Any, schedule: jf.Schedule) -> Any:
        return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights, schedule))

    given = params()
    got = step(given, schedule())
    close(got, jax.tree.map(jnp.subtract, params(), expected()[1]), 1e-5)
    assert all(x.is_deleted() for x in jax.tree.leaves(given))


def test_float64() -> None:
    """Within `jax.enable_x64`, in which the model is compiled, too."""
    got = agrees_in_float64(jax.value_and_grad, *PAIRS[0])
    assert {x.dtype.name for x in jax.tree.leaves(got)} == {'float64'}


def test_bfloat16_beside_float32_parameters() -> None:
    """Cells compute in bfloat16, parameters and gradients are float32."""

    def cell(weight: Any, left: Any, right: Any) -> Any:
        x = jnp.concatenate([left, right])
        return jnp.tanh(weight.astype('bfloat16') @ x)

    def init(key: Any, *_: Any) -> Any:
        return jax.random.normal(key, (3, 6)) / 2

    leaf = jf.InputTransform(lambda n: [n / 16, 1, -1]) >> jf.Vector(3, 'bfloat16')
    narrow = jf.compile(binary(leaf, jf.Function(cell, init)))
    weights = narrow.init(jax.random.key(0))
    assert agree(narrow, weights, TREES, 3e-2).dtype == 'bfloat16'


# ---- schedules of one capacity, and in files -----------------------------------------


def test_schedules_that_do_not_stack() -> None:
    several = jf.compile(tree_block(3))
    small, large = several.schedule([1]), several.schedule([chain(3), 2])
    with pytest.raises(ValueError, match='expected schedules of one model') as caught:
        jf.Schedule.stack([small, large])
    told = str(caught.value)
    assert 'got some with examples 1 and 2, ' in told
    assert told.count('expected') == 1 and '\n' not in told
    with pytest.raises(ValueError, match='got those of two models: make them'):
        jf.Schedule.stack([small, jf.compile(tree_block(3)).schedule([1])])
    with pytest.raises(ValueError, match='got none: make them together'):
        jf.Schedule.stack([])
    both = several.schedules([[1], [chain(300), 2]])
    assert both[0].spec == both[1].spec and both[0].examples == 2
    assert several.schedules([]) == []
    with pytest.raises(ValueError, match='at most 1 examples'):
        several.schedules([[1], [1, 2]], size=1)


READER = """
import sys, interpreter, jax, numpy as np, transformed as t
from agreement import agree, close
from jax import export
model, (apply, raw) = t.model(), map(export.deserialize, t.read(sys.argv[1:]))
schedule = model.schedule(t.TREES)
grads = jax.grad(lambda p: (apply.call(p, schedule) ** 3).sum())(t.params())
close(grads, interpreter.called(jax.grad(t.eager), t.params()), 1e-5)
same = export.deserialize(apply.serialize()).call(t.params(), schedule)
values = raw.call(t.params(), schedule.indices, schedule.constants)
np.testing.assert_array_equal(same, values)
try:
    apply.call(t.params(), model.schedule(t.TREES[:2]))
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    """To a file and into another process, of schedules or of their arrays."""
    spec = schedule().spec

    def raw(params: Any, indices: Any, constants: Any) -> Any:
        return model().apply(params, jf.Schedule(indices, constants, spec))

    batch = schedule()
    whole = jax.export.export(jax.jit(model().apply))(params(), batch)
    arrays = jax.export.export(jax.jit(raw))(params(), batch.indices, batch.constants)
    paths = [tmp_path / 'whole', tmp_path / 'arrays']
    paths[0].write_bytes(whole.serialize(vjp_order=1))
    paths[1].write_bytes(arrays.serialize())
    done = subprocess.run(
        [sys.executable, '-c', READER, *map(str, paths)],
        cwd=Path(__file__).parents[1] / 'support',
        env=os.environ | {'PYTHONHASHSEED': '7'},
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"examples": 4' in done.stdout


def test_results_in_files() -> None:
    """Sequences and metrics are read as what they are; operations alone are not."""
    several = jf.compile(jf.Map(jf.Scalar() >> jf.AllOf(jf.Metric('m'), jf.Identity())))
    batch = several.schedule([[1, 2], [3]])
    exported = jax.export.export(jax.jit(several.apply))({}, batch)
    again = jax.export.deserialize(exported.serialize())
    value, metrics = again.call({}, batch)
    assert value.lengths.tolist() == [2, 1] and isinstance(value, jf.Ragged)
    assert float(metrics['m'].sum()) == 6


def test_files_for_several_capacities() -> None:
    """Each serves the batches that fit; no file serves any number of rows."""
    sums = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    lists = [[1.0] * n for n in range(9)]
    corpus, files = sums.trace(lists), {}
    for size in (1, 4):
        sums.reserve(corpus.capacities(size))
        exported = jax.export.export(jax.jit(sums.apply))
        files[size] = exported({}, sums.schedule([], size=size)).serialize()
    read = {size: jax.export.deserialize(data) for size, data in files.items()}
    for count in (1, 2, 3, 4):
        size = min(each for each in read if each >= count)
        values = read[size].call({}, sums.schedule(lists[-count:], size=size))
        assert values[:count].tolist() == [9.0 - count + k for k in range(count)]
    with pytest.raises(ValueError, match='capacity'):
        read[1].call({}, sums.schedule(lists[-2:], size=4))

    batch = sums.schedule(lists[:2], size=4)

    def raw(indices: Any) -> Any:
        return sums.apply({}, jf.Schedule(indices, batch.constants, batch.spec))

    (rows,) = jax.export.symbolic_shape('rows')
    with pytest.raises(ValueError, match=r'an array int32\[42\], got int32\[rows\]'):
        jax.export.export(jax.jit(raw))(jax.ShapeDtypeStruct((rows,), 'int32'))


def test_files_for_any_number_of_members() -> None:
    """Parameters may have a leading axis of a size that is not known yet."""
    (members,) = jax.export.symbolic_shape('members')
    batch = schedule()
    several = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), params()
    )
    ensemble = jax.jit(jax.vmap(model().apply, (0, None)))
    exported = jax.export.export(ensemble)(several, batch)
    read = jax.export.deserialize(exported.serialize())
    for count in (1, 3):
        given = stacked([params(n) for n in range(count)])
        found = read.call(given, batch)
        assert found.shape[0] == count
        for number in range(count):
            one = jax.tree.map(lambda x: x[number], given)  # noqa: B023
            close(found[number], model().apply(one, batch), 1e-5)


# ---- the page -----------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / 'docs' / 'transformations.md'
PARTS = 'transformations', 'forward_mode', 'nestings', 'ways_in'


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code, one part after the other, prints what it says."""
    names: dict[str, Any] = {}
    parts = re.findall(
        r'^```python\n(.*?)^```', PAGE.read_text(encoding='utf8'), re.S | re.M
    )
    for part in parts:
        exec(part, names)
        remarks = re.findall(r'^print.*  # (.*)', part, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == remarks


def test_the_table_names_the_tests() -> None:
    """Each row one that there is, and each of these in a row."""
    text = PAGE.read_text(encoding='utf8')
    rows = [x for x in text.splitlines() if x.count('|') == 5][2:]
    assert all('`test_' in row for row in rows)
    told = set(re.findall(r'`(test_\w+)`', text))
    files = (Path(__file__).with_name(f'test_{x}.py') for x in PARTS)
    source = '\n'.join(file.read_text(encoding='utf8') for file in files)
    here = set(re.findall(r'^def (test_\w+)', source, re.MULTILINE))
    apart = 'test_the_page_runs', 'test_the_table_names_the_tests'
    assert told == here.difference(apart)
