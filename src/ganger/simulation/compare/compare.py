"""The errand `sim compare`: several policies on one trace, each in a process of its own, and a report of them.

Called by `simulation.subcommand`. While runs last it prints a JSON object on a line of its own whenever one of them is
further (`done`, from 0 to 1, and `ended`, how many runs are over); the answer is the last line. Whatever can be wrong
with what was asked is said before the first run begins."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from ganger.model.cluster import Node
from ganger.model.policy import ORDER
from ganger.simulation.arguments.argument_error import Unaskable
from ganger.simulation.arguments.node_arguments import size_of
from ganger.simulation.arguments.policy_arguments import read_document
from ganger.simulation.arguments.run_arguments import DRAWS, parts_of, run_of
from ganger.simulation.compare.contender import Contender, compared
from ganger.simulation.compare.seed_spread import spread
from ganger.simulation.from_log.compare_days import OwnContender, own_compared, own_contenders
from ganger.simulation.from_log.days import own_source
from ganger.simulation.process_pool import Broke, Came, Far, Work, in_parallel
from ganger.simulation.report.html_report import report
from ganger.simulation.result import Record, source
from ganger.simulation.traces.read_trace import read_jobs

POLICIES: Final = "dynamic,strict_fifo,first_fit,easy,conservative,sjf"
"""Those compared where none is named: the default, and what tables of the field begin with."""


def compare(arguments: argparse.Namespace) -> Record:
    """Run them all, and tell how each went. Unaskable, Unreadable: what was asked is wrong."""
    if arguments.report is not None:
        _expect_folder(arguments.report)
    answer = _of_trace(arguments) if arguments.from_log is None else _of_log(arguments)
    runs = answer["runs"]
    if arguments.report is not None and runs:
        _write(arguments.report, report(answer))
    return answer


def _of_trace(arguments: argparse.Namespace) -> Record:
    policies = _policies(POLICIES if arguments.policies is None else arguments.policies)
    fails = arguments.faults is not None
    seeds = _seeds(policies, arguments.seeds, fails=fails)
    trace = read_jobs(arguments.trace, arguments.format)
    contenders = [
        Contender(policy=policy, seed=seed, run=run_of(arguments, trace, policy, seed or 0))
        for policy in policies
        for seed in seeds[policy]
    ]
    first = contenders[0].run
    for path in arguments.document:
        document = read_document(path, first.nodes)
        for seed in range(arguments.seeds) if fails and arguments.seeds > 1 else (None,):
            run = replace(run_of(arguments, trace, ORDER, seed or 0), document=document)
            contenders.append(Contender(policy=str(path), seed=seed, run=run))
    runs, broken = _run_all(compared, contenders)
    return _answer(arguments, source(trace, ()), first.nodes, runs, broken)


def _of_log(arguments: argparse.Namespace) -> Record:
    """Recorded, under the policy in force, and under what is named."""
    policies = [] if arguments.policies is None else _policies(arguments.policies)
    _seeds(policies or [ORDER], arguments.seeds, fails=False)
    nodes, contenders = own_contenders(arguments, policies)
    past = contenders[0].past
    runs, broken = _run_all(own_compared, contenders)
    return _answer(arguments, own_source(past, past.findings), nodes, runs, broken)


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for at, name in enumerate(names):
        if not name:
            raise Unaskable(f"a policy without a name in {text!r}", f"--policies {POLICIES}")
        if name in names[:at]:
            raise Unaskable(f"{name} is named twice in {text!r}", "name each policy once")
        parts_of(name)
    return names


def _seeds(policies: Sequence[str], many: int, *, fails: bool) -> dict[str, list[int | None]]:
    """Those of each policy; None alone where nothing draws. `fails`: nodes do, drawn for all alike."""
    drawn = {policy: parts_of(policy)[1] == DRAWS or (fails and many > 1) for policy in policies}
    if many > 1 and not any(drawn.values()):
        score = f"{policies[0].partition('+')[0]}+{DRAWS}"
        raise Unaskable(
            f"--seeds {many}: none of these policies draws, so {many} runs of each would be the same",
            f"leave --seeds out, add --faults FILE, or name a placement score that draws: {score}",
        )
    return {policy: list(range(many)) if drawn[policy] else [None] for policy in policies}


def _expect_folder(file: Path) -> None:
    """Hours of simulation are not to end without a place for the report."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise Unaskable(f"there is no folder {folder} for the report", f"mkdir -p {folder}")
    if file.is_dir():
        raise Unaskable(f"{file} is a folder, and the report is a file", f"--report {file / 'report.html'}")
    if not os.access(folder, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise Unaskable(f"the report cannot be written to {file}", f"ls -ld {folder}")


def _run_all(work: Work, contenders: Sequence[Contender | OwnContender]) -> tuple[list[Record], list[Record]]:
    """What came of those that ended, in the order in which they were named, and of those that did not, why."""
    signal.signal(signal.SIGTERM, _end)
    parts, came, broken = [0.0] * len(contenders), dict[int, Record](), dict[int, str]()
    for told in in_parallel(work, contenders):
        match told:
            case Far(at, part):
                parts[at] = part
            case Came(at, result):
                parts[at], came[at] = 1, result
            case Broke(at, why):
                parts[at], broken[at] = 1, why
        _say({"done": sum(parts) / len(parts), "ended": len(came) + len(broken), "runs": len(contenders)})
    named = [{"name": contenders[at].name, "why": why} for at, why in sorted(broken.items())]
    return [came[at] for at in sorted(came)], named


def _answer(
    arguments: argparse.Namespace,
    read: Record,
    nodes: Sequence[Node],
    runs: Sequence[Record],
    broken: Sequence[Record],
) -> Record:
    """The findings are of the trace and the cluster, so each simulated run has the same."""
    findings = runs[-1]["findings"] if runs else []
    return {
        **read,
        "findings": findings,
        **size_of(nodes),
        "start_ms": arguments.start_ms,
        "checkpoint_ms": arguments.checkpoint_ms or 0,
        "broken": list(broken),
        "report": None if arguments.report is None or not runs else str(arguments.report),
        "runs": (every := [{name: value for name, value in run.items() if name != "findings"} for run in runs]),
        "spread": spread(every),
    }


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def _say(told: Record) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _end(_signal: int, _frame: object) -> NoReturn:
    """By leaving the loop, so that all processes are ended."""
    raise SystemExit(128 + signal.SIGTERM)
