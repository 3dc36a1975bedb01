# SPDX-License-Identifier: Apache-2.0
"""Serves a model over HTTP, and measures how long one-example requests take.

A request is a tree as JSON, a number or a pair of trees, `[1, [2, 3]]`; the answer are
the logits of a network that runs over it. All programs are compiled before the first
request. Requests that come at the same time run as one batch; what does not fit the
expression is answered by status 400 and the error's own words, and a tree larger than
was planned for gets a program of its own, after which small ones are as fast as before.

Parameters are drawn, not trained: what is shown is serving. With `--save` a file is
written instead, from which `--load` serves without the code that built the model, for
trees that were planned for.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from training import table

import jfold as jf

Tree = Any  # an int, or a list of two trees
Model = jf.Model | jf.LoadedModel
Step = Callable[[Any, jf.Schedule], Any]  # parameters and a batch to logits
WIDTH, WORDS, CLASSES = 64, 100, 10
TOGETHER = 8  # requests that run as one batch, at most


class Join(nn.Module):
    """One vector of two."""

    @nn.compact
    def __call__(self, left: jax.Array, right: jax.Array) -> jax.Array:
        return nn.tanh(nn.Dense(WIDTH)(jnp.concatenate([left, right])))


def make_block() -> jf.Block:
    """The logits of a tree."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32', below=WORDS) >> jf.Function(nn.Embed(WORDS, WIDTH))
    pair = jf.Record((tree(), tree())) >> jf.Function(Join())
    tree.resolve_to(jf.OneOf(type, {int: leaf, list: pair}))
    return tree() >> jf.Function(nn.Dense(CLASSES))


def draw(rng: random.Random, leaves: int) -> Tree:
    """A random tree of so many leaves."""
    if leaves == 1:
        return rng.randrange(WORDS)
    left = rng.randint(1, leaves - 1)
    return [draw(rng, left), draw(rng, leaves - left)]


# ---- the service ---------------------------------------------------------------------


class Service:
    """A model with its parameters, and programs that are compiled already.

    Requests are traced in the threads that they come in, where each has its own errors;
    one thread puts together those that wait, and runs them.
    """

    def __init__(self, model: Model, params: Any, steps: dict[int, Step]) -> None:
        self.model, self.params, self.trace = model, params, model.tracer()
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.steps = steps
        self.worker = threading.Thread(target=self._work, daemon=True)
        self.worker.start()

    def answer(self, tree: Tree) -> list[float]:
        """The logits of a tree.

        Raises:
          InputError: it is none.
        """
        future: Future[list[float]] = Future()
        self.waiting.put((self.trace([tree]), future))
        return future.result()

    def _work(self) -> None:
        while batch := self._next():
            traced, futures = zip(*batch, strict=True)
            try:
                rows = self._run(list(traced))
            except Exception as error:
                for future in futures:
                    future.set_exception(error)
            else:
                for future, row in zip(futures, rows, strict=False):
                    future.set_result(row)

    def _next(self) -> list[Any]:
        """What waits, up to a batch; the first is waited for. Nothing at the end."""
        found = [self.waiting.get()]
        while len(found) < TOGETHER and not self.waiting.empty():
            found.append(self.waiting.get())
        if None in found:
            self.waiting.put(None)
        return [each for each in found if each is not None]

    def _run(self, traced: list[jf.Traced]) -> list[list[float]]:
        if len(traced) == 1:
            size, schedule = 1, self.model.schedule(traced[0])
        else:
            size, corpus = TOGETHER, self.model.join(traced)
            schedule = corpus.schedule(range(len(traced)), size=TOGETHER)
        rows: list[list[float]]
        rows = np.asarray(self.steps[size](self.params, schedule)).tolist()
        return rows

    def close(self) -> None:
        """Ends the thread, when what waits is done."""
        self.waiting.put(None)
        self.worker.join()


def make_handler(service: Service) -> type[BaseHTTPRequestHandler]:
    """What answers requests to a service."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'  # a connection serves many requests
        wbufsize = -1  # and an answer is sent in one piece
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get('Content-Length', 0))
            status, answer = respond(service, self.rfile.read(length))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: requests are many."""

    return Handler


def respond(service: Service, body: bytes) -> tuple[int, Any]:
    """Status and answer for the body of a request."""
    try:
        return 200, {'logits': service.answer(json.loads(body))}
    except (jf.InputError, json.JSONDecodeError) as error:
        return 400, {'error': str(error)}
    except (jf.ProgramBudgetError, ValueError) as error:  # a tree without room
        return 503, {'error': str(error)}


@contextmanager
def serving(service: Service, port: int = 0) -> Iterator[int]:
    """Serves on a thread; gives the port."""
    server = ThreadingHTTPServer(('127.0.0.1', port), make_handler(service))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        service.close()


# ---- the load ------------------------------------------------------------------------


@dataclass
class Client:
    """A connection to the server."""

    port: int

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection('127.0.0.1', self.port)

    def post(self, body: str) -> tuple[int, Any]:
        """Status and answer."""
        self.connection.request('POST', '/', body.encode())
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def timed(run: Callable[[Any], Any], given: Sequence[Any]) -> list[float]:
    """Milliseconds that each takes."""
    found = []
    for each in given:
        begin = time.perf_counter()
        run(each)
        found.append(1e3 * (time.perf_counter() - begin))
    return found


def row(name: str, times: Sequence[float]) -> tuple[str, ...]:
    """A row of the table."""
    quantiles = statistics.quantiles(times, n=100, method='inclusive')
    return name, str(len(times)), f'{quantiles[49]:.2f}', f'{quantiles[98]:.2f}'


def measure(service: Service, port: int, requests: int, seed: int) -> str:
    """A table of how long requests take."""
    rng, rows = random.Random(seed), [('ms', 'requests', 'p50', 'p99')]
    small = [draw(rng, 10) for _ in range(requests)]
    model, params, step = service.model, service.params, service.steps[1]
    schedules = [model.schedule([tree]) for tree in small]
    rows.append(row('schedule alone', timed(lambda x: model.schedule([x]), small)))
    given = timed(lambda x: np.asarray(step(params, x)), schedules)
    rows.append(row('the program alone', given))

    def directly(tree: Tree) -> Any:
        return np.asarray(step(params, model.schedule([tree])))

    rows.append(row('both, 10 leaves', timed(directly, small)))
    with Client(port) as client:
        for leaves in 10, 50, 200:
            bodies = [json.dumps(draw(rng, leaves)) for _ in range(requests)]
            rows.append(row(f'over HTTP, {leaves} leaves', timed(client.post, bodies)))
    rows.append(row('8 clients, 10 leaves', together(port, requests, seed)))
    return table(rows)


def together(port: int, requests: int, seed: int) -> list[float]:
    """Milliseconds of requests that several clients send at the same time."""

    def load(number: int) -> list[float]:
        rng = random.Random(seed + number)
        bodies = [json.dumps(draw(rng, 10)) for _ in range(requests // TOGETHER)]
        with Client(port) as client:
            return timed(client.post, bodies)

    with ThreadPoolExecutor(TOGETHER) as pool:
        return [each for times in pool.map(load, range(TOGETHER)) for each in times]


def misuse(port: int) -> str:
    """What becomes of requests that are none."""
    with Client(port) as client:
        found = [client.post(body) for body in ('[1, [2, 300]]', '[1, "x"]', '[1,')]
    return '\n'.join(f'{status}: {answer["error"]}' for status, answer in found)


def outgrow(model: jf.Model, port: int, seed: int) -> str:
    """What becomes of a tree that is larger than any that was planned for."""
    rng = random.Random(seed)
    large, small = json.dumps(draw(rng, 1_000)), json.dumps(draw(rng, 10))
    with Client(port) as client:
        first, again = timed(client.post, [large, large])
        after = statistics.median(timed(client.post, [small] * 50))
    return (
        f'1,000 leaves: {first:.0f} ms with compiling, {again:.2f} ms again; 10 leaves '
        f'after that: {after:.2f} ms; {model.programs} programs in all'
    )


# ---- the command line ----------------------------------------------------------------


def make_model(seed: int) -> tuple[jf.Model, Any]:
    """With drawn parameters, and room for trees of 250 leaves, of any shape."""
    model = jf.compile(make_block())
    largest = reduce(lambda tree, _: [tree, 0], range(249), 0)
    for size in 1, TOGETHER:
        model.reserve(model.schedule([largest] * size).capacity)
    return model, jax.jit(model.init)(jax.random.key(seed))


def make_service(seed: int) -> Service:
    """Of a model that is built here; each step has run once."""
    model, params = make_model(seed)
    steps: dict[int, Step] = {}
    for size in 1, TOGETHER:
        schedule = model.schedule([], size=size)
        step = model.precompile(model.apply, params, schedule.capacity)
        jax.block_until_ready(step(params, schedule))
        steps[size] = step
    return Service(model, params, steps)


def load_service(path: str) -> Service:
    """Of a model in a file, which is all that it takes."""
    model = jf.load(path)
    model.precompile()
    return Service(model, model.params, {1: model.apply, TOGETHER: model.apply})


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument('--serve', type=int, metavar='PORT', help='until Ctrl-C')
    parser.add_argument('--save', metavar='PATH', help='writes the model, and ends')
    parser.add_argument('--load', metavar='PATH', help='serves what was saved')
    parser.add_argument('--requests', type=int, default=2_000, help='of each kind')
    parser.add_argument('--seed', type=int, default=0, help='repeats a run')
    parser.add_argument('--quick', action='store_true', help='only shows it works')
    options = parser.parse_args(argv)
    if options.quick:
        options.requests = 40
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Serves; or serves itself, and prints how long that takes."""
    options = read_options(argv)
    if options.save:
        jf.save(options.save, *make_model(options.seed))
        return
    service = load_service(options.load) if options.load else make_service(options.seed)
    with serving(service, options.serve or 0) as port:
        if options.serve is not None:
            print(f'curl -d "[1, [2, 3]]" http://127.0.0.1:{port}')
            threading.Event().wait()
        print(show(service, port, options.requests, options.seed))


def show(service: Service, port: int, requests: int, seed: int) -> str:
    """How long requests take, and what becomes of those that do not fit."""
    model = service.model
    if isinstance(model, jf.LoadedModel):
        return f'{measure(service, port, requests, seed)}\n\n{misuse(port)}'
    before = model.programs
    table = measure(service, port, requests, seed)
    compiled = f'programs compiled meanwhile: {model.programs - before}'
    last = outgrow(model, port, seed)
    return f'{table}\n\n{compiled}\n\n{misuse(port)}\n\n{last}'


if __name__ == '__main__':
    main()
