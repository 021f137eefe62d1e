"""Test of the nodes of a job: `ganger run --nodes 8 --nproc-per-node 1 -- python -m ganger.train.preflight`.

Needs torch. Each node measures its GPUs and its memory, and then exchanges data with others in pairs. Prints a line for
each node that failed, and last one line of JSON; the exit code is 0, or 3 if a node is bad.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from datetime import timedelta

from ganger.train.launcher_environment import node_rank, task_directory, world
from ganger.train.preflight.device_figures import decode, encode
from ganger.train.preflight.group_testing import MAX_ROUNDS, TESTS_OF_ROUND, Findings, GroupTesting
from ganger.train.preflight.measure_devices import measure_devices
from ganger.train.preflight.measure_pairs import PairMeasurement, distributed
from ganger.train.preflight.node_results import MeasuredNode, join_results, result_text, write_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

START_TIMEOUT = timedelta(seconds=120)
FIGURES_TIMEOUT = timedelta(seconds=300)
"""For the measurement of all GPUs of a node, after which it counts as silent."""
OK, USAGE, BAD = 0, 2, 3
"""1 is what Python exits with when a program fails."""
MIN_NODES = 3
"""Of two it cannot be said which one is bad."""


def main(argv: Sequence[str]) -> int:
    """Run this node's part, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ganger.train.preflight", description=__doc__)
    parser.add_argument("--rounds", type=int, default=MAX_ROUNDS, help=f"of {TESTS_OF_ROUND} tests of each node")
    rounds = parser.parse_args(argv).rounds
    if rounds < 1:
        sys.stderr.write("ganger: a test of nodes needs at least 1 round: leave out --rounds for the usual number\n")
        return USAGE
    try:
        dist = distributed()
    except ImportError:
        sys.stderr.write("ganger: a test of nodes needs torch: run it by the Python of a job that trains with it\n")
        return USAGE
    own = world()
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    store = dist.TCPStore(address, port, None, own.rank == 0, START_TIMEOUT)
    figures = {"node": node_rank(), "host": socket.gethostname(), "figures": encode(measure_devices())}
    store.set(f"figures/{own.rank}", json.dumps(figures))
    measurement = PairMeasurement(store, own.rank, own.world_size)
    return _lead(measurement, rounds, own.attempt) if own.rank == 0 else _follow(measurement)


def _lead(measurement: PairMeasurement, rounds: int, seed: int) -> int:
    """Carry out the test as rank 0, report what it found, and let all nodes know the outcome."""
    tested = [_tested(measurement, rank) for rank in range(measurement.size)]
    testing = GroupTesting([str(rank) for rank in range(measurement.size)], seed=seed)
    if measurement.size < MIN_NODES:
        sys.stdout.write(f"pairs are not tested: that needs at least {MIN_NODES} nodes, one rank each\n")
        pairs, rounds = Findings({}, {}, {}), 0
    else:
        pairs = measurement.lead(testing, rounds)
    tests = TESTS_OF_ROUND * rounds
    results = join_results(tested, pairs, testing.performance_milli(), tests)
    sys.stdout.write(result_text(results, rounds, tests))
    directory = task_directory()
    if directory is not None:
        try:
            write_result(results, directory)
        except OSError as error:
            sys.stderr.write(f"ganger: the results cannot be written for the server: {error}\n")
    is_bad = any(result.is_bad for result in results)
    measurement.end(json.dumps(is_bad))
    return BAD if is_bad else OK


def _follow(measurement: PairMeasurement) -> int:
    """Carry out another node's part, and return the outcome of rank 0."""
    if measurement.size >= MIN_NODES:
        measurement.follow()
    return BAD if json.loads(measurement.await_end()) else OK


def _tested(measurement: PairMeasurement, rank: int) -> MeasuredNode:
    """Return what a node has measured; one that does not report in time, or no figures, takes part no further."""
    try:
        measurement.store.wait([f"figures/{rank}"], FIGURES_TIMEOUT)
        document: dict[str, Any] = json.loads(measurement.store.get(f"figures/{rank}"))
        node, host = document["node"], str(document["host"])
        return MeasuredNode(node if type(node) is int else rank, host, decode(document["figures"]))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"ganger: node {rank} has not reported what it measured: {error}\n")
        measurement.silent[str(rank)] = None
        return MeasuredNode(rank, "?", None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
