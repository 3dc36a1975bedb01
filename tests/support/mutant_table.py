# SPDX-License-Identifier: Apache-2.0
"""Mutants: plausible mistakes in the code, each with a test that must see it.

`mutants.py` makes them and runs the tests. A test checks that each still has its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """A mistake in the code.

    Attributes:
      rule: what must hold, and no longer does.
      file: the path in the repository.
      before: a text that is there once.
      after: the wrong text in its place.
      tests: files of tests, of which one must fail.
    """

    rule: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The room of `jfold/` that the file is in; `top` for files in no room."""
        _, *folders, _ = Path(self.file).parts
        return folders[0] if folders else 'top'


MUTANTS = (
    # ---- device
    Mutant(
        'Spare rows of a chunk repeat the first, in residuals as in inputs.',
        'jfold/device/backward.py',
        'residuals = [repeated(x, real) for x in residuals]',
        'residuals = [*residuals]',
        ('tests/device/test_runtime.py',),
    ),
    Mutant(
        'No gradient flows through spare rows outside of loops.',
        'jfold/device/reads.py',
        'lax.select(mask, x, lax.stop_gradient(x if spare is None else spare))',
        'lax.select(mask, x, x if spare is None else spare)',
        ('tests/scheduling/test_read_modes.py',),
    ),
    Mutant(
        'Long sums of 16-bit floats are taken in float32.',
        'jfold/device/reads.py',
        "return x.astype('float32') if narrow else x",
        'return x',
        ('tests/device/test_outside_loops.py',),
    ),
    Mutant(
        'Weights that no real row reads have a gradient of zero.',
        'jfold/device/outside_loops.py',
        '[mask_spare(x, extent.count > 0) for x in weights]',
        'weights',
        ('tests/device/test_defined.py',),
    ),
    Mutant(
        'Spare rows of a stash that gradients divide by repeat a real one.',
        'jfold/device/backward.py',
        'yield masked(x, real) if stash.is_linear else repeated(x, real)',
        'yield masked(x, real)',
        ('tests/device/test_runtime.py',),
    ),
    Mutant(
        'A stash in the place of a product lies one widest tile further on.',
        'jfold/device/execution.py',
        'return max(self.layout.widths[o]) if self.is_recurrent(o) else 0',
        'return 0',
        ('tests/device/test_small_limits.py', 'tests/scheduling/test_schedule.py'),
    ),
    Mutant(
        'Consumers are numbered behind the constants, which have none.',
        'jfold/device/backward.py',
        'at = first - reads.execution.spec.capacity.constants[t]',
        'at = first',
        ('tests/device/test_small_limits.py',),
    ),
    Mutant(
        'Edge rows of inputs that are read together alternate.',
        'jfold/device/buffers.py',
        'jnp.concatenate(rows, 1).reshape(count * len(rows), *shape)',
        'jnp.concatenate(rows, 0).reshape(count * len(rows), *shape)',
        ('tests/device/test_small_limits.py',),
    ),
    Mutant(
        'A tile of the reverse never reaches into the level before.',
        'jfold/device/loops.py',
        'begin = jnp.maximum(row - rows, first)',
        'begin = jnp.maximum(row - rows, 0)',
        ('tests/device/test_sizes.py',),
    ),
    Mutant(
        'A chunk without real rows adds nothing to gradients.',
        'jfold/device/loops.py',
        '[jnp.where(first < count, x, y) for x, y in pairs]',
        'new',
        ('tests/device/test_defined.py', 'tests/device/test_runtime.py'),
    ),
    Mutant(
        'Sums of cotangents count levels through all components.',
        'jfold/device/sums.py',
        'before = sum(levels for levels, _ in loops.batch.layout.tables[:c])',
        'before = 0',
        ('tests/tracing/test_sharing.py', 'tests/device/test_small_limits.py'),
    ),
    Mutant(
        'The derivative of a stored product follows both of its factors.',
        'jfold/device/kernel_reverse.py',
        'multiply(d_left, right) + multiply(left, d_right)',
        'multiply(left, d_right)',
        ('tests/device/test_sizes.py',),
    ),
    Mutant(
        'A product of two cotangents is not linear.',
        'jfold/device/analyses.py',
        'others[0] if len(others) == 1 else Form.OTHER if others else Form.FIXED',
        'others[0] if others else Form.FIXED',
        ('tests/device/test_linearity.py',),
    ),
    Mutant(
        'Sums in a fixed order begin anew for each row of a table.',
        'jfold/device/fixed_order.py',
        'return begins | begins_again, jnp.where(is_new, rows, before + rows)',
        'return begins_again, jnp.where(is_new, rows, before + rows)',
        ('tests/device/test_reproducible.py',),
    ),
    Mutant(
        'Gradients of gradients are derivatives along a direction.',
        'jfold/device/derivatives.py',
        'jax.jvp(both, (primals,), (tangents,))[1]',
        'jax.jvp(both, (primals,), (tangents,))[0]',
        ('tests/device/test_forward_mode.py',),
    ),
    Mutant(
        'Rows of two shards draw different numbers.',
        'jfold/device/random_keys.py',
        'before = 0 if shards is None else lax.axis_index(shards.axes) *',
        'before = 0 if shards is None else 0 *',
        ('tests/device/test_draws.py',),
    ),
    # ---- scheduling
    Mutant(
        'Indices of spare rows repeat the last real one.',
        'jfold/scheduling/fill.py',
        'last = column[-1] if b > a else 0',
        'last = column[0] if b > a else 0',
        ('tests/device/test_sizes.py',),
    ),
    Mutant(
        'An example without values has the largest value 0.',
        'jfold/scheduling/demands.py',
        'filled = lengths.nonzero()[0]',
        'filled = (begin < len(values)).nonzero()[0]',
        ('tests/scheduling/test_demands.py',),
    ),
    Mutant(
        'A group of fewer uses than four takes a sum, too.',
        'jfold/scheduling/sum_trees.py',
        'counts, most, owner = -(-counts[wide] // SUM_ARITY), most[wide], owner[wide]',
        'counts, most, owner = counts[wide] // SUM_ARITY, most[wide], owner[wide]',
        ('tests/scheduling/test_demands.py',),
    ),
    Mutant(
        'The larger of two profiles has the larger rows of each step.',
        'jfold/scheduling/staircase.py',
        'np.maximum(long[: len(short)], short, out=long[: len(short)])',
        'long[: len(short)] = short',
        ('tests/scheduling/test_staircase.py',),
    ),
    Mutant(
        'A capacity holds what fits its steps, not its numbers alone.',
        'jfold/scheduling/spec.py',
        'return is_larger and all(map(fits, other.profiles, self.profiles))',
        'return is_larger',
        ('tests/scheduling/test_staircase.py',),
    ),
    Mutant(
        'Where sums have rows, any number of summands fits.',
        'jfold/scheduling/spec.py',
        'if not self.sum_rows:',
        'if self.sum_rows:',
        ('tests/scheduling/test_read_modes.py',),
    ),
    Mutant(
        'A capacity that grows holds all that the old one held.',
        'jfold/scheduling/growth.py',
        'return new if old is None else old | new',
        'return new',
        ('tests/scheduling/test_schedule.py',),
    ),
    Mutant(
        'A reserved capacity stays when it is outgrown.',
        'jfold/scheduling/budget.py',
        'stays = not chain.specs or chain.specs[-1] in self.reserved',
        'stays = not chain.specs',
        ('tests/scheduling/test_budget.py',),
    ),
    Mutant(
        'There are never more programs than the limit says.',
        'jfold/scheduling/budget.py',
        'if is_new and limit is not None and sum(self.specs.values()) >= limit:',
        'if is_new and limit is not None and sum(self.specs.values()) > limit:',
        ('tests/scheduling/test_budget.py',),
    ),
    Mutant(
        'An example goes to the shard with the least work so far.',
        'jfold/scheduling/assignment.py',
        'heapq.heapreplace(loads, (load + work[example], shard))',
        'heapq.heapreplace(loads, (load + 1, shard))',
        ('tests/scheduling/test_shards.py',),
    ),
    Mutant(
        'A mean leaves out spare rows.',
        'jfold/scheduling/schedule.py',
        'return mean_of_rows(jnp.where(real, losses, 0), mask.sum())',
        'return mean_of_rows(losses, mask.sum())',
        ('tests/data/test_predict.py',),
    ),
    Mutant(
        'Spare rows of a shard are of no example.',
        'jfold/scheduling/schedule.py',
        'return jnp.where(owners < one.examples, owners + before, self.examples)',
        'return owners + before',
        ('tests/blocks/test_metrics.py',),
    ),
    Mutant(
        'The narrowest tiles leave no row over.',
        'jfold/scheduling/tiles.py',
        '    left[-1] = 0\n',
        '',
        ('tests/scheduling/test_schedule.py',),
    ),
    Mutant(
        'Of constants, only -0.0 changes no sum of floats.',
        'jfold/scheduling/summands.py',
        "is_neutral = is_neutral and np.signbit(value.astype('float64')).all()",
        'pass',
        ('tests/scheduling/test_read_modes.py',),
    ),
    # ---- language
    Mutant(
        'The output of an RNN may be the state before its item.',
        'jfold/language/rules_sequences.py',
        '        next_states.append(carried)\n        return output\n',
        '        next_states.append(carried)\n        w.assign(state, carried)\n'
        '        return output\n',
        ('tests/blocks/test_carried.py',),
    ),
    Mutant(
        'Nodes of an operation are in the order of evaluation.',
        'jfold/language/rules_sequences.py',
        '    if len({*makers}) != len(makers):\n        return False\n',
        '',
        ('tests/language/test_source.py', 'tests/program/test_graph.py'),
    ),
    Mutant(
        'A sequence of lists is as long as its shortest list.',
        'jfold/language/rules_alignment.py',
        "'same_length' if block.strict else 'min'",
        "'same_length' if block.strict else 'max'",
        ('tests/blocks/test_alignment.py',),
    ),
    Mutant(
        'An index is below the length of its sequence.',
        'jfold/language/rules_alignment.py',
        'if not -len(items) <= number < len(items):',
        'if not -len(items) <= number <= len(items):',
        ('tests/blocks/test_alignment.py',),
    ),
    Mutant(
        'Padding begins behind the last item.',
        'jfold/language/rules_alignment.py',
        'if {operand.n} > {k} else {next(zeros)}',
        'if {operand.n} > {k + 1} else {next(zeros)}',
        ('tests/blocks/test_chaining.py',),
    ),
    Mutant(
        'An Optional takes `None` alone for absent, not other false values.',
        'jfold/language/rules_control.py',
        "w.line(f'if {x.text} is not None:')",
        "w.line(f'if {x.text}:')",
        ('tests/blocks/test_sequences.py',),
    ),
    Mutant(
        'A reduction that draws has a key for each of its steps.',
        'jfold/language/rules_reductions.py',
        'return node.facts is not None and not draws',
        'return node.facts is not None',
        ('tests/device/test_draws.py', 'tests/blocks/test_reduction.py'),
    ),
    Mutant(
        'Short groups of a maximum are filled with an item, not with zeros.',
        'jfold/language/rules_reductions.py',
        'return Fill.LAST if is_extremum else Fill.NOTHING',
        'return Fill.ZERO if is_extremum else Fill.NOTHING',
        ('tests/blocks/test_reduction.py',),
    ),
    Mutant(
        'A fused function draws nothing in evaluation.',
        'jfold/language/fusion.py',
        'evaluating=_call_of(before, last, feeds, evaluates=True)',
        'evaluating=_call_of(before, last, feeds, evaluates=False)',
        ('tests/language/test_fusion.py',),
    ),
    Mutant(
        'Parameters of other shapes are refused.',
        'jfold/language/parameter_checks.py',
        "is_array = hasattr(leaf, 'dtype') and leaf.shape == spec.shape",
        "is_array = hasattr(leaf, 'dtype')",
        ('tests/language/test_parameters.py',),
    ),
    # ---- tracing
    Mutant(
        'A negative number does not fit an unsigned dtype.',
        'jfold/tracing/convert.py',
        '(result.astype(array.dtype) == array) & ((result < 0) == (array < 0))',
        'result.astype(array.dtype) == array',
        ('tests/tracing/test_convert.py',),
    ),
    Mutant(
        'Levels of another recurrence do not count.',
        'jfold/tracing/tape_reader.py',
        'mask[number] = part[x] == part[o]',
        'mask[number] = True',
        ('tests/language/test_source.py', 'tests/program/test_graph.py'),
    ),
    Mutant(
        'A graph from outside has the right levels.',
        'jfold/tracing/check_graph.py',
        'wrong = (levels != below + 1).nonzero()[0]',
        'wrong = (levels < below + 1).nonzero()[0]',
        ('tests/program/test_check_graph.py',),
    ),
    Mutant(
        'Of several wrong examples the first is named.',
        'jfold/tracing/record.py',
        'if number and not isinstance(error, BadItem):',
        'if False:',
        ('tests/tracing/test_errors.py',),
    ),
    # ---- data
    Mutant(
        'Each epoch has an order of its own.',
        'jfold/data/sampler.py',
        'seed = np.random.SeedSequence([*key, epoch])',
        'seed = np.random.SeedSequence([*key])',
        ('tests/data/test_batches.py',),
    ),
    Mutant(
        'An epoch begins with its first example, also in a resumed run.',
        'jfold/data/batches.py',
        '            yield _Chunk(epoch, end, places, settings.items(places))\n'
        '        position = 0\n',
        '            yield _Chunk(epoch, end, places, settings.items(places))\n',
        ('tests/data/test_batches_resumed.py',),
    ),
    Mutant(
        'A restored run lists only what it skips itself.',
        'jfold/data/batches.py',
        'self._cursor, self._skipped, self._steps = cursor, [], None',
        'self._cursor, self._steps = cursor, None',
        ('tests/data/test_batches_resumed.py',),
    ),
    Mutant(
        'The example that does not fit is the one that is left out.',
        'jfold/data/batches.py',
        'places, items = np.delete(places, bad), ',
        'places, items = np.delete(places, -1), ',
        ('tests/data/test_batches.py',),
    ),
    Mutant(
        'Predictions come in the order of the examples.',
        'jfold/data/predict.py',
        "rows = real[np.argsort(batch.indices[real], kind='stable')]",
        'rows = real',
        ('tests/data/test_predict.py',),
    ),
    Mutant(
        'Examples of several files come in the order that is asked for.',
        'jfold/data/corpus_files.py',
        'return concatenate(picked).pick(order.argsort())',
        'return concatenate(picked).pick(order)',
        ('tests/data/test_joining.py', 'tests/data/test_corpus.py'),
    ),
    # ---- program and graph
    Mutant(
        'Components run behind those that they read.',
        'jfold/program/components.py',
        'key=lambda group: reached[group[0]].bit_count())',
        'key=lambda group: group[0])',
        ('tests/program/test_recurrence.py', 'tests/device/test_phases.py'),
    ),
    Mutant(
        'A group is combined from the left to the right.',
        'jfold/program/operations.py',
        'return functools.reduce(combined, arguments)',
        'return functools.reduce(combined, arguments[::-1])',
        ('tests/blocks/test_reduction.py',),
    ),
    # ---- files
    Mutant(
        'Each byte of the header is checked.',
        'jfold/files/storage.py',
        'if header != _header(start, text):',
        'if checksum != zlib.crc32(text):',
        ('tests/data/test_storage.py',),
    ),
    Mutant(
        'Numbers that JSON lacks are written as text.',
        'jfold/files/encoding.py',
        'return math.isfinite(value)',
        'return bool(value == value)',
        ('tests/data/test_encoding.py',),
    ),
    # ---- models and debug
    Mutant(
        'A loaded model takes the smallest capacity that holds a batch.',
        'jfold/models/saved.py',
        'return sorted(specs, key=_sort_key)',
        'return sorted(specs, key=_sort_key, reverse=True)',
        ('tests/models/test_saved.py',),
    ),
    Mutant(
        'A file of other kinds of blocks is refused, whichever version has more.',
        'jfold/models/saved.py',
        "{*saved['program']['classes']} ^ {*tags()}",
        "{*tags()} - {*saved['program']['classes']}",
        ('tests/models/test_saved_refused.py',),
    ),
    Mutant(
        'Levels are searched one after another for what is not finite.',
        'jfold/debug/nonfinite_rows.py',
        'np.searchsorted(levels[o][order], [level, level + 1])',
        'np.searchsorted(levels[o], [level, level + 1])',
        ('tests/models/test_nonfinite.py',),
    ),
    # ---- flax
    Mutant(
        'Items with scores of minus infinity do not count.',
        'jfold/flax/layers/attention.py',
        'base = jnp.where(largest == -jnp.inf, 0, largest)',
        'base = largest',
        ('tests/flax/test_layers.py',),
    ),
    Mutant(
        'Backward outputs stand beside the items that they belong to.',
        'jfold/flax/layers/recurrent.py',
        "make(features, name='backwards') >> GetItem(0) >> BACKWARDS",
        "make(features, name='backwards') >> GetItem(0)",
        ('tests/flax/test_layers.py',),
    ),
    # ---- base and the top of the package
    Mutant(
        'Keys of two nodes of an example differ.',
        'jfold/base/keys.py',
        'for part in (identity, number):',
        'for part in (identity,):',
        ('tests/device/test_draws.py',),
    ),
    Mutant(
        'Leaves in plain containers go back to their own places.',
        'jfold/base/structs.py',
        'by_number = dict(zip(order, leaves, strict=True))',
        'by_number = dict(zip(numbers, leaves, strict=True))',
        ('tests/data/test_encoding.py',),
    ),
    Mutant(
        'The mean over no rows is zero.',
        'jfold/base/functions.py',
        'jnp.maximum(count, 1).astype(wide)',
        'count.astype(wide)',
        ('tests/data/test_predict.py', 'tests/device/test_sizes.py'),
    ),
    Mutant(
        'Rows of a result with any number of rows are zero behind the real ones.',
        'jfold/runtime.py',
        'results[r] = [masked(x, real) for x in results[r]]',
        'results[r] = [*results[r]]',
        ('tests/device/test_sizes.py',),
    ),
)
