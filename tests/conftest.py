"""Settings that every test shares."""

import gc
import os
import signal

import pytest
from hypothesis import settings

TIMEOUT_S = {"serial": 300, "long": 900, "cluster": 600}
"""Upper bounds of tests that take long, by marker; of others it is in pyproject.toml."""
SEARCH_TIMEOUT_S = 4 * 3600
"""Upper bound of a test where GANGER_TEST_LONG is set: thousands of examples of a second each."""

pytest_plugins = ["tests.costs", "tests.leftover_threads"]

# What is started in the background ignores Ctrl-C, and would hand that on to what tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a test checks behaviour, never time. CI draws the same examples every run, so that a
# failure there is the change's own; elsewhere every run explores new ones. A quarter of Hypothesis's hundred: of 150
# faults that were planted in the core, the laws saw nearly as many as with all; `make test-long` draws ten times more.
settings.register_profile("ganger", deadline=None, print_blob=True, derandomize="CI" in os.environ, max_examples=25)
LONG = int(os.environ.get("GANGER_TEST_LONG", "0"))
"""For a long search, new examples each time: how many, of each law."""
settings.register_profile("long", deadline=None, print_blob=True, derandomize=False, max_examples=LONG or 1)
settings.load_profile("long" if LONG else "ganger")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real Kubernetes: `make test` leaves it out, `make test-cluster` runs it alone."""
    for item in items:
        call = getattr(item, "callspec", None)
        fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
        if {"real_cluster", "own_cluster"} & {*fixtures} or (call is not None and "real" in call.params.values()):
            item.add_marker("cluster")
        if item.get_closest_marker("timeout") is None:
            limits_s = [TIMEOUT_S[mark.name] for mark in item.iter_markers() if mark.name in TIMEOUT_S]
            limits_s += [SEARCH_TIMEOUT_S] if LONG else []
            if limits_s:
                item.add_marker(pytest.mark.timeout(max(limits_s)))


def pytest_collection_finish() -> None:
    """Leave what collection made out of every later garbage collection: 400,000 objects, 0.3 s each time."""
    gc.collect()
    gc.freeze()
    # Of 100 s of CPU time collections took 5, with these 3.5: most of what the second and third look at lives on.
    gc.set_threshold(10_000, 20, 50)
