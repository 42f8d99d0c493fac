"""Requests to one worker: order, failures, cancelled waits, several event loops, a clean shutdown."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import TrainingError
from memalpha.train.learner.async_engine import Future, Pipeline

WAYS = ("later", "now", "no time", "await", "cancelled", "never")
"""Ways to wait for a future right after its request is submitted."""


class Broken(Exception):
    """Error of a failing request."""


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def inline(request) -> bool:
    return request.param


def outcome(future: Future):
    """Return ("value", v) or ("error", e), by `result` or by `await` in a new loop."""
    try:
        return "value", future.result(10)
    except (Broken, TrainingError) as error:
        return "error", error


async def waited(future: Future):
    return await future


async def given_up(future: Future) -> None:
    """Await a future in a task and cancel the task."""
    task = asyncio.ensure_future(waited(future))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def wait(future: Future, way: str) -> None:
    with suppress(TimeoutError, Broken, TrainingError):
        if way == "now":
            future.result(10)
        elif way == "no time":
            future.result(0)
        elif way == "await":
            asyncio.run(waited(future))
        elif way == "cancelled":
            asyncio.run(given_up(future))


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(st.booleans(), st.sampled_from(WAYS)), max_size=12), inline=st.booleans())
def test_requests_run_in_order_up_to_the_first_failure(steps, inline):
    """`steps` say for each request if it works, and how its future is awaited."""
    done: list[int] = []

    def request(number: int, works: bool):
        def work() -> int:
            done.append(number)
            if not works:
                raise Broken(f"number {number}")
            return 10 * number

        return work

    pipeline = Pipeline(inline=inline)
    futures = []
    for number, (works, way) in enumerate(steps):
        futures.append(pipeline.submit(f"request {number}", request(number, works)))
        wait(futures[-1], way)
    outcomes = [outcome(future) for future in futures]
    pipeline.close()
    good = next((number for number, (works, _) in enumerate(steps) if not works), len(steps))
    assert done == list(range(min(good + 1, len(steps))))
    assert outcomes[:good] == [("value", 10 * number) for number in range(good)]
    if good == len(steps):
        return
    kind, first = outcomes[good]
    assert kind == "error" and type(first) is Broken and str(first) == f"number {good}"
    for number, (kind, error) in enumerate(outcomes[good + 1 :], start=good + 1):
        assert kind == "error" and type(error) is TrainingError and error.__cause__ is first
        assert f"request {number} was not done: request {good} before it failed" in str(error)
    assert all(future.done() for future in futures)


def test_futures_are_awaited_in_several_loops_at_once_and_again():
    gate = threading.Event()
    with Pipeline() as pipeline:
        future = pipeline.submit("request", lambda: gate.wait() and "done")
        results: list[str] = []

        async def twice() -> None:
            results.extend(await asyncio.gather(waited(future), waited(future)))
            results.append(await future)

        threads = [threading.Thread(target=lambda: asyncio.run(twice())) for _ in range(3)]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join(10)
    assert results == ["done"] * 9 and future.result() == "done"


def test_a_request_cannot_wait_for_a_later_one(inline):
    """Waiting in the worker's thread would never end."""
    with Pipeline(inline=inline) as pipeline:

        def work() -> str:
            return pipeline.submit("inner", lambda: "inner").result()

        future = pipeline.submit("outer", work)
        if inline:
            assert future.result() == "inner"
            return
        with pytest.raises(TrainingError, match="inner: a request cannot wait for one that is done after it"):
            future.result(10)


def test_ctrl_c_in_an_inline_request_interrupts_its_caller():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Pipeline(inline=True) as pipeline:
        pipeline.submit("request", interrupted)


def test_close_finishes_all_requests_and_refuses_new_ones(inline):
    pipeline = Pipeline(inline=inline)
    futures = [pipeline.submit("request", lambda i=i: i) for i in range(20)]
    pipeline.close()
    assert [future.result(0) for future in futures] == list(range(20))
    pipeline.close()
    with pytest.raises(TrainingError, match="one more: this pipeline is closed"):
        pipeline.submit("one more", lambda: None)


def test_an_exception_drops_queued_requests():
    gate, started, done = threading.Event(), threading.Event(), []

    def first() -> None:
        started.set()
        gate.wait()
        done.append("first")

    with pytest.raises(KeyError), Pipeline() as pipeline:
        running = pipeline.submit("first", first)
        waiting = pipeline.submit("second", lambda: done.append("second"))
        started.wait()
        threading.Timer(0.02, gate.set).start()
        raise KeyError("elsewhere")
    assert running.done() and done == ["first"]
    with pytest.raises(TrainingError, match="second was not done: its pipeline was closed before"):
        waiting.result(0)


def test_close_raises_an_unreported_failure(inline):
    def fail() -> None:
        raise Broken("unheard")

    with (
        pytest.raises(TrainingError, match=r"request failed \(unheard\)") as close_error,
        Pipeline(inline=inline) as pipeline,
    ):
        pipeline.submit("request", fail)
    assert isinstance(close_error.value.__cause__, Broken)
    with Pipeline(inline=inline) as pipeline:
        future = pipeline.submit("request", fail)
        with pytest.raises(Broken):
            future.result(10)


def test_an_unused_pipeline_finishes_and_ends_its_thread():
    gate = threading.Event()
    pipeline = Pipeline(name="forgotten")
    thread, reference = pipeline._thread, weakref.ref(pipeline)
    future = pipeline.submit("request", gate.wait)
    del pipeline
    gc.collect()
    assert reference() is not None, "requests are left"
    gate.set()
    assert future.result(10) is True
    del future
    assert thread is not None
    for _ in range(100):
        gc.collect()
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert reference() is None and not thread.is_alive()


END = """
import threading, time
from memalpha.train.learner.async_engine import Pipeline
pipeline = Pipeline()
begun, submitted = threading.Event(), threading.Event()
def long():
    begun.set()
    submitted.wait()
    while pipeline._requests.qsize() > 1:  # until the exit has dropped what waits, however long that takes
        time.sleep(0.01)
    print("ended what was begun", flush=True)
futures = [pipeline.submit("long", long)] + [pipeline.submit("never", lambda: time.sleep(60)) for _ in range(50)]
submitted.set()
begun.wait()
{last}
"""


@pytest.mark.slow  # CI runs it
@pytest.mark.parametrize("last", ["", "raise KeyboardInterrupt", "raise SystemExit(0)"])
def test_interpreter_exit_waits_for_the_running_request_only(last):
    ended = subprocess.run([sys.executable, "-c", END.format(last=last)], capture_output=True, text=True, timeout=50)
    assert ended.stdout == "ended what was begun\n"
    assert ended.stderr.count("Traceback") == ("Keyboard" in last)
