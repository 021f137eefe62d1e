"""Run worlds by seed, on all processors: `python -m tests.seeds [--seeds N] [--first K] [SEED...]` (`make seeds`).

Even seeds are servers of one machine, odd ones controllers of a cluster. A seed that fails is printed with the law that
does not hold, the last events without their times, and the command that runs it again.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.seeds.controller_world import ControllerWorld
from tests.seeds.server_world import ServerWorld
from tests.seeds.universe import Universe, run_world

SHOWN_EVENTS, SHOWN_CHARACTERS, SHOWN_LAWS = 40, 200, 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed.

    Attributes:
        errors: laws that do not hold.
        events: what happened, without times.
        digest: the same for two runs of a seed; of times too.
        virtual_s, cpu_s: how long it took in the world, and how much CPU time here.
        struck: how often each kind of fault struck.
        phases: how many jobs ended in each state.
    """

    seed: int
    errors: tuple[str, ...]
    events: tuple[str, ...]
    digest: str
    virtual_s: float
    cpu_s: float
    struck: Counter[str]
    ends: Counter[str]


def run_seed(seed: int) -> Outcome:
    """Run the world of a seed."""
    began_s = time.process_time()
    kind = ServerWorld if seed % 2 == 0 else ControllerWorld
    universe: Universe = run_world(seed, lambda universe, folder: kind(universe, folder).live())
    return Outcome(
        seed=seed,
        errors=tuple(universe.errors),
        events=tuple(universe.record),
        digest=universe.digest,
        virtual_s=universe.now_s,
        cpu_s=time.process_time() - began_s,
        struck=universe.struck,
        ends=universe.ends,
    )


def run_seeds(seeds: Iterable[int]) -> Iterator[Outcome]:
    """Run seeds beside each other; yield their outcomes as they come."""
    # What is imported is never garbage, and each world leaves a lot that is.
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as processes:
        yield from processes.imap_unordered(_run_and_collect, seeds)


def _run_and_collect(seed: int) -> Outcome:
    outcome = run_seed(seed)
    gc.collect()
    return outcome


def describe_failure(outcome: Outcome) -> str:
    """Return what went wrong with a seed."""
    laws = [f"  {law}" for law in outcome.errors[:SHOWN_LAWS]]
    events = [f"  {event[:SHOWN_CHARACTERS]}" for event in outcome.events[-SHOWN_EVENTS:]]
    more = f" (the first {SHOWN_LAWS} of {len(outcome.errors)})" if len(outcome.errors) > SHOWN_LAWS else ""
    again = f"run it again: make seeds SEED={outcome.seed}"
    return "\n".join([f"seed {outcome.seed} breaks{more}:", *laws, "its last events:", *events, again])


def main(arguments: Sequence[str]) -> int:
    """Run the seeds of a command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeds", description="Run worlds by seed.")
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="K")
    parser.add_argument("seed", type=int, nargs="*", metavar="SEED")
    chosen = parser.parse_args(arguments)
    began_s = time.monotonic()
    seeds = chosen.seed or range(chosen.first, chosen.first + chosen.seeds)
    outcomes = list[Outcome]()
    for outcome in run_seeds(seeds):
        outcomes.append(outcome)
        if outcome.errors:
            print(describe_failure(outcome), flush=True)
    wall_s = time.monotonic() - began_s
    failed = sorted(outcome.seed for outcome in outcomes if outcome.errors)
    events, hours = sum(len(outcome.events) for outcome in outcomes), sum(o.virtual_s for o in outcomes) / 3600
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    print(
        f"{len(outcomes)} seeds, {events} events, {hours:.1f} h of virtual time in {wall_s:.1f} s ({cpu_s:.1f} s CPU)"
    )
    print("faults: " + _counts(outcomes, "struck"))
    print("jobs: " + _counts(outcomes, "ends"))
    print(f"failed: {' '.join(map(str, failed))}" if failed else "no law was broken")
    return bool(failed)


def _counts(outcomes: Iterable[Outcome], name: str) -> str:
    total = sum((getattr(outcome, name) for outcome in outcomes), Counter[str]())
    return ", ".join(f"{what} {count}" for what, count in total.most_common())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
