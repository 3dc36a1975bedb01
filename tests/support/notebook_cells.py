# SPDX-License-Identifier: Apache-2.0
"""A notebook of 29 cells, as somebody writes it who gets to know a model.

A cell that is a mistake names its error in its first line, `# raises InputError`; one
that defines anew what others have compiled says `# defines`.
"""

from __future__ import annotations

import re

CELLS = """
import _thread
import random
import time

import jax
import jax.numpy as jnp
import jfold as jf
import numpy as np
import optax
from flax import linen as nn

# %% the data
def random_tree(rng, depth=5):
    if depth == 0 or rng.random() < 0.3:
        return rng.randrange(10)
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)

def largest(tree):
    return max(map(largest, tree)) if isinstance(tree, tuple) else tree

rng = random.Random(0)
trees = [random_tree(rng) for _ in range(60)]
targets = np.array([largest(tree) for tree in trees])

def late(x):
    _thread.interrupt_main()
    time.sleep(9)

def price(item):
    return item['price']

priced = jf.compile(jf.InputTransform(price) >> jf.Scalar())

# %%
# defines
WIDTH = 8

class Combine(nn.Module):
    width: int

    @nn.compact
    def __call__(self, left, right):
        both = jnp.concatenate([left, right])
        return nn.Dense(self.width)(nn.relu(nn.Dense(self.width)(both)))

def word_of(tree):
    return tree + 0

def ones(key, x):
    return jnp.ones(x.shape)

def layer(scale, x):
    return jnp.tanh(scale * x)

scaled = layer

def layer(shift, x):
    return x + shift - 1

def make_model(width):
    tree = jf.ForwardDeclaration(name='tree')
    word = jf.InputTransform(word_of) >> jf.Scalar('int32', below=10)
    leaf = word >> jf.Function(nn.Embed(10, width))
    pair = jf.Record((tree(), tree())) >> jf.Function(Combine(width))
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    both = jf.Function(scaled, ones) >> jf.Function(layer, ones)
    return jf.compile(tree() >> both >> jf.Function(nn.Dense(10)))

model = make_model(WIDTH)
params = model.init(jax.random.key(0))
optimizer = optax.adam(0.01)
state = optimizer.init(params)
model

# %%
# defines
def make_step():
    @jax.jit
    def step(params, state, schedule, targets):
        def loss(params):
            logits = model.apply(params, schedule)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return schedule.mean(losses)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step

step = make_step()

# %%
model.eval(trees[0], params).shape

# %%
schedule = model.schedule(trees[:16])
print(model.explain(schedule))

# %%
schedule = model.schedule(trees[:16])
for _ in range(3):
    params, state, value = step(params, state, schedule, targets[:16])
assert np.isfinite(value)

# %%
# raises InputError
model.schedule([trees[0], (1, 'x')])

# %%
# raises TypeError
model.apply(params, trees[:2])

# %%
# raises TypeError
model.apply({'Dense': params['Dense']}, model.schedule(trees[:16]))

# %%
corpus = model.trace(trees)
corpus

# %%
batches = model.batches(corpus, 16, shuffle=0, epochs=2)
for batch in batches:
    chosen = targets[batch.indices]
    params, state, value = step(params, state, batch.schedule, chosen)
assert np.isfinite(value)

# %% Ctrl-C while the data come
# raises KeyboardInterrupt
def stream():
    yield from trees
    _thread.interrupt_main()
    time.sleep(1)

model.predict(params, stream(), batch_size=16)

# %% and in a loop of one's own
# raises KeyboardInterrupt
for number, batch in enumerate(model.batches(corpus, 16, shuffle=0, epochs=None)):
    if number == 2:
        raise KeyboardInterrupt
    chosen = targets[batch.indices]
    params, state, value = step(params, state, batch.schedule, chosen)

# %% and while data are traced
# raises KeyboardInterrupt
def numbers():
    yield from trees[:50]
    raise KeyboardInterrupt

model.trace(numbers())

# %% and while a function of the data runs
# raises KeyboardInterrupt
jf.compile(jf.InputTransform(late) >> jf.Scalar()).schedule([1])

# %% within a function that JAX traces
# raises KeyboardInterrupt
jax.jit(lambda x: jf.compile(jf.Scalar() >> jf.Function(late)))(1)

# %%
# raises InputError
for batch in priced.batches([{'price': 1}, {}], 2):
    pass

# %%
model.predict(params, corpus, batch_size=16).shape

# %% a hyper-parameter, and the model once more
# defines
WIDTH = 8 if WIDTH == 12 else 12
model = make_model(WIDTH)
params = model.init(jax.random.key(0))
optimizer = optax.adam(0.01)
state = optimizer.init(params)
step = make_step()

# %% the corpus is that of the model before, of the same structure
for batch in model.batches(corpus, 16, shuffle=0):
    chosen = targets[batch.indices]
    params, state, value = step(params, state, batch.schedule, chosen)
assert np.isfinite(value)

# %%
whole = model.predict(params, corpus, batch_size=16)
some = model.predict(params, trees[:3])
np.testing.assert_allclose(whole[:3], some, rtol=1e-4)

# %% batches of every size
for size in (1, 2, 3, 5, 8, 13, 21, 34, 55):
    found = model.apply(params, model.schedule(trees[:size]))
    assert found.shape == (size, 10)

# %% a list that grows by one
tree = 1
for count in range(40):
    tree = tree, count % 10
    model.predict(params, [tree], batch_size=1)

# %% small batches, after all that
assert model.predict(params, trees[:20], batch_size=8).shape == (20, 10)

# %% the cell of two layers of one name is edited: each keeps its parameters
# defines
before = model.predict(params, trees[:8], batch_size=8)

def layer(shift, x):  # the one that comes second stands first

    return x + shift - 1

shifted = layer

def layer(scale, x):
    return jnp.tanh(scale * x)

scaled, layer = layer, shifted
model = make_model(WIDTH)
after = model.predict(params, trees[:8], batch_size=8)
np.testing.assert_allclose(after, before, rtol=1e-4)

# %%
corpus.save('trees.jfold')
again = jf.Corpus.load('trees.jfold', model)
assert model.predict(params, again, batch_size=8).shape == (60, 10)

# %%
# defines
room = model.reserve(corpus.capacities(4))
serve = model.precompile(model.apply, params, room)
for size in (1, 2, 4):
    assert serve(params, model.schedule(trees[:size], size=4)).shape == (4, 10)

# %% a file names functions, and nobody can import those of a notebook
# raises TypeError
jf.save('trees.jfold', model, params, [corpus.capacities(4)])
"""


def cells() -> list[str]:
    """The code of each."""
    return [x.strip() + '\n' for x in re.split(r'^# %%.*\n', CELLS, flags=re.MULTILINE)]


def expected(cell: str) -> str | None:
    """The error of a cell that is a mistake."""
    found = re.match(r'# raises (\w+)', cell)
    return found and found[1]
