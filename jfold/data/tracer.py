# SPDX-License-Identifier: Apache-2.0
"""A `Tracer`, which traces examples in other processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jfold.base.errors import check_examples
from jfold.base.tracebacks import api_boundary
from jfold.data.corpus import write
from jfold.data.fingerprint import fingerprint
from jfold.data.recording import trace_corpus
from jfold.data.scheduler import Scheduler
from jfold.data.traced import Traced, digest_of
from jfold.program.operations import Program
from jfold.tracing.record import trace


@dataclass(frozen=True, eq=False)
class Tracer:
    """A callable from examples to `Traced`, to be pickled; made by `Model.tracer`.

    It holds no parameters and no arrays of a device, and computes with NumPy alone: JAX
    is imported where it runs, but starts no backend. Functions that pickle refuses, as
    lambdas, are pickled by `cloudpickle`, which grain and Dask use.

    Attributes:
      scheduler: without functions of layers and without a budget.
      fingerprint: all that traced examples depend on, as JSON data.
    """

    scheduler: Scheduler
    fingerprint: dict[str, Any]

    @property
    def program(self) -> Program:
        """The program that examples are traced for."""
        return self.scheduler.program

    @functools.cached_property
    def digest(self) -> str:
        """The digest of `fingerprint`."""
        return digest_of(self.fingerprint)

    @api_boundary
    def __call__(self, examples: Iterable[Any]) -> Traced:
        """Trace examples and return them as arrays.

        Raises:
          InputError: an example does not fit the expression; the error has its number
            among `examples`.
          TypeError: `examples` is a tuple, dict or string, which may be one example.
        """
        graph = trace(self.program, list(check_examples(examples)))
        return Traced(graph, self.digest)

    @api_boundary
    def save(
        self,
        examples: Iterable[Any],
        path: str | os.PathLike[str],
        *,
        skip_errors: bool = False,
    ) -> None:
        """Trace examples and write them as one part of a corpus, all or nothing.

        Each worker writes a part, and holds no more in memory than that part.
        `Corpus.load` opens the folder of all parts, in the order of their names.

        Args:
          examples, skip_errors: as in `Model.trace`.
          path: the file, as in `Corpus.save`; the names of parts end in `.jfold`.

        Raises:
          InputError, TypeError: see `Model.trace`; then nothing is written.
          FileNotFoundError: there is no such folder.

        >>> import jfold as jf, tempfile
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.tracer().save([[1, 2], []], f'{folder}/part-0.jfold')
        ...     model.tracer().save([[3]], f'{folder}/part-1.jfold')
        ...     corpus = jf.Corpus.load(folder, model)
        >>> model.apply({}, corpus.schedule([2, 0])).tolist()
        [3.0, 3.0]
        """
        examples = check_examples(examples)
        corpus = trace_corpus(self.scheduler, examples, skip_errors, progress=False)
        write(path, corpus, self.fingerprint)

    def __repr__(self) -> str:
        return f'Tracer({self.program.output!r})'


def make_tracer(scheduler: Scheduler) -> Tracer:
    """Return the tracer of a scheduler, without the functions of its layers."""
    return Tracer(scheduler.portable(), fingerprint(scheduler.program))
