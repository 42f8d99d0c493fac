"""`Learner`: an `Engine` behind futures; each call submits a request to one worker and returns a `Future` at once.

The interface follows Tinker's training client (Thinking Machines, 2025): forward, forward_backward, optim_step, save.
Requests run in the order of submission and give, bit for bit, the results of the same calls on the engine. So the
caller can wait for a reader or a judge while the learner works.

The sampler shares the engine's weights: wait for the last `optim_step` before sampling again.

A pipeline runs requests one by one in the order of submission; each request has a future.

* Order: waiting for a future changes nothing, whoever waits. A request does what the same call would do in a plain
  program.
* Failure: the future of the first failed request raises its error. Nothing runs afterwards: every later future raises
  `TrainingError` with that error as `__cause__`. Half an update on top of a failed one would be worse than none, so
  resume from a checkpoint with a new pipeline.
* Cancelling: a cancelled `await`, or a `result(timeout)` that times out, does not withdraw the request. Others may
  depend on it.
* End: `close` waits for all requests (`drop=True`: for the running one). The interpreter's exit drops what has not
  started. `close` raises a failure that no future has reported.
"""

from __future__ import annotations

import asyncio
import math
import numbers
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch

from memalpha.arguments import brief_repr, check_type
from memalpha.errors import TrainingError
from memalpha.policy.transformers import TransformersPolicy
from memalpha.train.data.samples import TrainingSample
from memalpha.train.learner.engine import Engine, check_rows
from memalpha.train.trainers.directory import RunDirectory, load_checkpoint, write_checkpoint

T = TypeVar("T")


class Future(futures.Future[T]):
    """Result of a request: `await` it in any event loop, any number of times, or call `result`."""

    def __init__(self, pipeline: Pipeline, label: str) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.label = label
        self.pipeline = pipeline  # keeps the pipeline alive until the request is done

    def result(self, timeout: float | None = None) -> T:
        """Return the request's result, or raise its error.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: The request did not finish in time.
            TrainingError: An earlier request failed, or the call comes from a request that runs before this one.
        """
        self._raise_if_in_request()
        try:
            return super().result(timeout)
        except BaseException:
            self.pipeline.failure_reported |= self.done()
            raise

    def _raise_if_in_request(self) -> None:
        if not self.done() and self.pipeline.is_in_request():
            raise TrainingError(f"{self.label}: a request cannot wait for one that is done after it")

    def __await__(self) -> Generator[Any, None, T]:
        self._raise_if_in_request()
        if not self.done():
            loop = asyncio.get_running_loop()
            wakeup = loop.create_future()

            def wake(_: Any) -> None:
                with suppress(RuntimeError):  # that loop was closed in the meantime
                    loop.call_soon_threadsafe(lambda: wakeup.done() or wakeup.set_result(None))

            self.add_done_callback(wake)
            yield from wakeup.__await__()
        return self.result()


class Pipeline:
    """Worker of the requests: a thread, or with `inline` the caller, before `submit` returns.

    Both run the same requests in the same order. As a context manager it calls `close()` on exit, and
    `close(drop=True)` after an exception.
    """

    def __init__(self, *, inline: bool = False, name: str = "memalpha pipeline") -> None:
        self.failure: BaseException | None = None
        """Error of the first failed request."""
        self.failed_label = ""
        self.failure_reported = False
        """True once a future has raised its failure to a caller."""
        self._closed = self._dropped = False
        self._lock = threading.RLock()
        self._requests: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if not inline:
            # A daemon that the finalizer stops: a second Ctrl-C at exit can leave a thread that hangs in C code.
            self._thread = threading.Thread(target=_run_worker, args=[self._requests], name=name, daemon=True)
            self._thread.start()
            weakref.finalize(self, _shut_down, self._requests, self._thread)

    def submit(self, label: str, work: Callable[[], T]) -> Future[T]:
        """Queue `work` after all earlier requests and return its future at once, even after a failure.

        `label` names the request in messages.

        Raises:
            TrainingError: The pipeline is closed.
        """
        future: Future[T] = Future(self, label)
        with self._lock:
            if self._closed:
                raise TrainingError(f"{label}: this pipeline is closed")
            if self._thread is not None:
                self._requests.put((future, work))
            elif (error := self.run_request(future, work)) is not None and not isinstance(error, Exception):
                raise error  # a Ctrl-C interrupts the caller, which runs the request inline
        return future

    def run_request(self, future: Future[T], work: Callable[[], T]) -> BaseException | None:
        """Run one request, or set the reason why it is not run; returns its error."""
        if self.failure is not None:
            reason = " ".join(str(self.failure).split()) or type(self.failure).__name__
            error: BaseException = TrainingError(
                f"{future.label} was not done: {self.failed_label} before it failed ({reason})"
            )
            error.__cause__ = self.failure
        elif self._dropped:
            error = TrainingError(f"{future.label} was not done: its pipeline was closed before")
        else:
            try:
                value = work()
            except BaseException as raised:  # noqa: BLE001  # exits too: the waiting caller gets them
                error = self.failure = raised
                self.failed_label = future.label
            else:
                future.set_result(value)
                return None
        future.set_exception(error)
        return error

    def close(self, *, drop: bool = False) -> None:
        """Accept no more requests and wait for the queued ones, or with `drop` only for the running one.

        Futures of dropped requests raise `TrainingError`.

        Raises:
            TrainingError: A request failed and no future has reported it, or the caller is a request of this pipeline.
        """
        if self.is_in_request():
            raise TrainingError("a request cannot close the pipeline that it is done in")
        with self._lock:
            self._closed = True
        self._dropped |= drop
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
        if self.failure is not None and not drop and not self.failure_reported:
            self.failure_reported = True
            raise TrainingError(f"{self.failed_label} failed ({self.failure})") from self.failure

    def is_in_request(self) -> bool:
        """Return True if the caller runs inside a request."""
        return self._thread is not None and threading.current_thread() is self._thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drop=kind is not None)


def _run_worker(requests: SimpleQueue[Any]) -> None:
    while (request := requests.get()) is not None:
        request[0].pipeline.run_request(*request)
        del request  # drop the reference: an unused pipeline is finalized here


def _shut_down(requests: SimpleQueue[Any], thread: threading.Thread) -> None:
    """Stop the worker at the interpreter's exit, or once the pipeline is garbage: no future can wait then."""
    with suppress(Empty):
        while True:
            requests.get_nowait()
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join()


CustomLoss = Callable[[list[torch.Tensor], Sequence[TrainingSample]], torch.Tensor]
"""Custom loss: takes log-probs of each row's completion, (T,) float32 with gradient, and the rows; returns a scalar."""


class Learner(Pipeline):
    """Run requests to `engine` in order, in a worker thread or `inline`, before the call returns.

    With several processes each process runs its requests inline: collectives must come from one thread, in one order. A
    new learner starts without a gradient. After a failed request, create a new learner from a checkpoint. As a context
    manager it waits for all requests on exit.

    Args:
        engine: Owner of weights and optimizer.
        inline: Run each request before the call returns, without a thread.
    """

    def __init__(self, engine: Engine, *, inline: bool = False) -> None:
        check_type("engine", engine, Engine, error=TrainingError)
        self.engine = engine
        engine.optimizer.zero_grad(set_to_none=True)
        super().__init__(inline=inline or engine.world.size > 1, name="memalpha learner")

    def forward(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> Future[list[np.ndarray]]:
        """Compute log-probs of each row's completion with the weights at that point (`Engine.forward`)."""
        return self.submit("forward", lambda: self.engine.forward(samples, reference=reference))

    def values(self, samples: Sequence[TrainingSample]) -> Future[list[np.ndarray]]:
        """Compute the value head's estimates before each completion token (`Engine.values`)."""
        return self.submit("values", lambda: self.engine.values(samples))

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: CustomLoss | None = None
    ) -> Future[dict[str, float]]:
        """Add a gradient to those since the last `optim_step`.

        Without `loss` the engine's loss of the samples' streams is used. The samples' weights must then be normalised
        for the whole optimizer step, however many calls it takes: use `update`, or `normalized` for all rows at once.

        A custom `loss` sees all rows of this call together, so the gradient is exact for every split into
        micro-batches. One pass computes the log-probs, a second one uses d loss / d log-prob as linear weights of the
        tokens. The samples' own weights are ignored and nothing is normalised. Its future raises `TrainingError` if the
        result has no gradient or is not finite.

        Args:
            samples: Token rows.
            loss: Custom loss; None uses the engine's.

        Returns:
            A future of metrics (see `merge_metrics`).
        """
        if loss is None:
            return self.submit("forward_backward", lambda: self.engine.forward_backward(samples))
        return self.submit("forward_backward", lambda: _custom_forward_backward(self.engine, samples, loss))

    def optim_step(self, rate: float) -> Future[float]:
        """Clip the accumulated gradient and step at learning rate `rate`; returns the gradient's norm."""
        _check_rate(rate)
        return self.submit("optim_step", lambda: self.engine.optim_step(rate))

    def save(
        self, out: str | Path, step: int, policy: TransformersPolicy, state: Mapping[str, Any] | None = None
    ) -> Future[Path]:
        """Write weights and optimizer to `out/checkpoints/step-N` (`write_checkpoint`).

        Args:
            out: Run directory.
            step: Step number N.
            policy: Policy whose tokenizer and configuration are saved.
            state: JSON state of the run; empty by default.

        Returns:
            A future of the checkpoint's path.
        """
        path = RunDirectory(Path(out)).checkpoint(step)

        def save() -> Path:
            write_checkpoint(path, policy, self.engine, {"step": step, **(state or {})})
            return path

        return self.submit("save", save)

    def load(self, path: str | Path) -> Future[dict[str, Any]]:
        """Restore weights and optimizer from a checkpoint and return its state (`checkpoint.load_checkpoint`)."""
        return self.submit("load", lambda: load_checkpoint(Path(path), self.engine))

    def normalized(self, *parts: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
        """Return the parts of ONE optimizer step, their weights normalised over all parts together."""
        lists = [check_rows(part) for part in parts]
        remaining = iter(self.engine.normalized([sample for part in lists for sample in part]))
        return [[next(remaining) for _ in part] for part in lists]

    def update(self, *parts: Sequence[TrainingSample], rate: float) -> Future[dict[str, float]]:
        """Take one optimizer step: normalise `parts` together, add each part's gradient, step.

        Returns:
            A future of the merged metrics (`merge_metrics`), `grad_norm` and `learning_rate`.
        """
        _check_rate(rate)
        gradients = [self.forward_backward(part) for part in self.normalized(*parts)]

        def step() -> dict[str, float]:
            norm = self.engine.optim_step(rate)
            metrics = merge_metrics([gradient.result() for gradient in gradients])
            return {**metrics, "grad_norm": norm, "learning_rate": rate}

        return self.submit("optim_step", step)


def _check_rate(rate: float) -> None:
    """Raise `TrainingError` unless a learning rate is a finite number that is not negative."""
    if not isinstance(rate, numbers.Real) or not math.isfinite(rate) or rate < 0:
        raise TrainingError(f"rate {brief_repr(rate)}: a learning rate, 0 or above, is needed")


def merge_metrics(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of several `forward_backward` calls of one optimizer step.

    Loss, tokens and rows without weight are summed. `ratio_deviation` and names that end with `_max` are maxima. All
    others are means weighted by tokens, exact except for quantiles.
    """
    if len(results) == 1:
        return dict(results[0])
    tokens = sum(metrics["tokens"] for metrics in results)
    totals: dict[str, float] = {}
    for name in results[0]:
        values = [metrics[name] for metrics in results]
        if name in ("loss", "tokens", "rows_without_weight"):
            totals[name] = sum(values)
        elif name == "ratio_deviation" or name.endswith("_max"):
            totals[name] = max(values)
        else:
            weighted = sum(value * metrics["tokens"] for value, metrics in zip(values, results, strict=True))
            totals[name] = weighted / max(1.0, tokens)
    return totals


def _custom_forward_backward(engine: Engine, samples: Sequence[TrainingSample], loss: CustomLoss) -> dict[str, float]:
    rows = [torch.from_numpy(row.copy()).requires_grad_() for row in engine.forward(samples)]
    value = loss(rows, samples)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        kind = f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise TrainingError(
            f"loss: must return a scalar tensor that depends on the log-probs; {kind} has no gradient for them"
        )
    gradients = torch.autograd.grad(value.reshape(()), rows, allow_unused=True)
    linear = []
    for sample, gradient in zip(samples, gradients, strict=True):
        zeros = np.zeros(len(sample.completion_ids), dtype=np.float32)
        weight = zeros if gradient is None else -gradient.numpy()
        linear.append(replace(sample, ce=weight, pg=zeros, kl=zeros, ent=None, vf=None))
    if not torch.isfinite(value) or not all(np.isfinite(row.ce).all() for row in linear):
        raise TrainingError(
            f"loss: {value.item():g}, or its gradient, is not finite: look for logs and divisions in it"
        )
    return {**engine.forward_backward(linear), "loss": value.item()}
