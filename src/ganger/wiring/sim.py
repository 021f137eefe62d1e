"""The errand `sim`: read another cluster's trace, and write it in ganger's own format or run it in virtual time.

Called by `wiring.__main__` for `ganger sim`. Prints one JSON object, on the last line: the answer, or `error` and
`next` and exit code 2.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import BinaryIO, Final

from ganger.engine.eventlog.stream_log import line
from ganger.errors import Refused
from ganger.model.event import Stamped
from ganger.model.policy import ORDER
from ganger.simulation.traces.ganger_format import write_jobs
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import Unreadable
from ganger.wiring.asked import parts_of, run_of
from ganger.wiring.clusters import size_of
from ganger.wiring.compare import compare
from ganger.wiring.documents import read_document
from ganger.wiring.faults import faults_told
from ganger.wiring.own_days import own_days
from ganger.wiring.simulate import simulate
from ganger.wiring.told import Record, figures, looks, source
from ganger.wiring.unaskable import Unaskable

OK, USAGE, INTERRUPTED = 0, 2, 130


def sim(arguments: argparse.Namespace) -> int:
    """Do it, and print the answer."""
    if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # not for this process; `multiprocessing` would unblock it
    try:
        answer = DO[arguments.what](arguments)
    except Unreadable as error:
        answer = {"error": f"{error.place}: {error.reason}", "next": error.next}
    except Unaskable as error:
        answer = {"error": error.reason, "next": error.next}
    except Refused as error:
        answer = {"error": error.detail, "next": error.next}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}", "next": f"ls -l {error.filename}"}
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(json.dumps(answer) + "\n")
    return USAGE if "error" in answer else OK


def _imported(arguments: argparse.Namespace) -> Record:
    trace = read_jobs(arguments.trace, arguments.format)
    write_jobs(trace, arguments.to)
    return {**source(trace, trace.findings), "jobs": len(trace.records), "file": str(arguments.to)}


def _ran(arguments: argparse.Namespace) -> Record:
    policy = arguments.policy or ORDER
    parts_of(policy)  # before a long file is read
    with ExitStack() as open_files:
        readers: list[Callable[[Stamped], None]] = []
        if arguments.log is not None:
            readers.append(_writer(open_files.enter_context(arguments.log.open("wb"))))
        if arguments.from_log is not None:
            return own_days(arguments, *readers)
        trace = read_jobs(arguments.trace, arguments.format)
        asked = run_of(arguments, trace, policy)
        if arguments.document:
            (path,) = arguments.document
            asked = replace(asked, document=read_document(path, asked.nodes))
            policy = str(path)
        occupancy = looks(asked)
        outcome = simulate(asked, occupancy.take, *readers)
    return {
        **source(trace, outcome.findings),
        "policy": policy,
        **size_of(asked.nodes),
        **figures(outcome, occupancy),
        **faults_told(asked.faults, outcome),
    }


def _writer(file: BinaryIO) -> Callable[[Stamped], None]:
    def write(row: Stamped) -> None:
        file.write(line(row))

    return write


DO: Final[dict[str, Callable[[argparse.Namespace], Record]]] = {
    "import": _imported,
    "run": _ran,
    "compare": compare,
}
"""What `ganger sim` has a word for."""
