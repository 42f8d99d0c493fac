"""When a request may go out: no 60 seconds hold more than the limits, however requests come."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.endpoint_calls import backoff, retry_after
from memalpha.policy.endpoint import Window


@given(
    st.integers(1, 5) | st.none(),
    st.integers(10, 50) | st.none(),
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 10), st.integers(0, 10)), max_size=40),
)
def test_no_minute_holds_more_than_the_limits(requests, tokens, arrivals):
    window, now, sent = Window(requests, tokens), 0.0, []
    for gap, wanted, really in arrivals:
        now += gap
        waits = 0
        while (wait := window.wait(now, wanted)) > 0:
            now += wait
            waits += 1
            assert waits < 1000
        spent = window.take(now, wanted)
        spent.tokens = min(wanted, really)
        sent.append(spent)
    for first in sent:
        minute = [spent for spent in sent if first.at <= spent.at < first.at + 60.0]
        assert requests is None or len(minute) <= requests
        assert tokens is None or sum(spent.tokens for spent in minute) <= tokens


def test_a_window_waits_no_longer_than_it_must():
    window = Window(requests=2, tokens=100)
    assert window.wait(0.0, 60) == 0.0
    window.take(0.0, 60)
    assert window.wait(10.0, 60) == 50.0, "until the first one's tokens are back"
    assert window.wait(10.0, 40) == 0.0
    window.take(10.0, 40)
    assert window.wait(20.0, 1) == 40.0, "the second request of two"
    assert window.wait(60.0, 60) == 0.0
    window = Window(tokens=100)  # what a request really took counts
    window.take(0.0, 90).tokens = 10
    assert window.wait(1.0, 90) == 0.0
    window.take(1.0, 90).tokens = 200
    assert window.wait(2.0, 0) == 59.0, "more than was thought: until it is over"


def test_backoff_is_full_jitter_under_a_ceiling():
    rng = Random(0)
    for attempt, ceiling in ((0, 1.0), (3, 8.0), (10, 60.0), (5000, 60.0)):
        waits = [backoff(attempt, 60.0, rng) for _ in range(500)]
        assert 0.0 <= min(waits) < 0.05 * ceiling and 0.95 * ceiling < max(waits) <= ceiling


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}, 20.0),
        ({"retry-after": "Sat, 21 Nov 2026 09:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_in_both_its_forms(headers, seconds):
    assert retry_after(headers, datetime(2026, 11, 21, 10, 0, 10, tzinfo=UTC)) == seconds
