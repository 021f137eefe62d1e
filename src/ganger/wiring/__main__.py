"""The program behind the server: `python -m ganger.wiring serve|controller|gangjobs|replay|doctor|sim`: its errands.

serve and controller end with 0, or with 5 and a sentence on stderr. replay ends with 1 when a decision comes out
otherwise; it prints sentences or, with --json, one object. doctor prints JSON and ends with 1 when something is wrong.
sim prints JSON and ends with 2 when what was asked cannot be. gangjobs answers one request on stdin, in JSON lines.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ganger import settings

if TYPE_CHECKING:
    from ganger.engine.replay import Replay

OK, DIFFERS, CANNOT = 0, 1, 5
EXTRA = "pip install 'ganger[kubernetes]'"


def main(argv: Sequence[str]) -> int:
    """Run one errand and give its exit code."""
    arguments = _parser().parse_args(argv)
    home = settings.Home(arguments.home.absolute()) if arguments.home else settings.home(os.environ)
    match arguments.errand:
        case "serve":
            return _serve(home, arguments.lock_fd, arguments.listen)
        case "controller":
            return _controller(home, arguments)
        case "gangjobs":
            return _gangjobs(arguments)
        case "replay":
            return _replay(home, arguments)
        case "sim":
            return _sim(arguments)
        case _:
            return _doctor(home, arguments.restore_to)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.wiring", description=__doc__)
    errands = parser.add_subparsers(dest="errand", required=True)
    serve = errands.add_parser("serve", help="run the server of a state directory until it is told to end")
    serve.add_argument("--lock-fd", type=int, help="the lock, handed over by a restart")
    serve.add_argument("--listen", metavar="HOST:PORT", help="answer there too, to whoever shows a token")
    controller = errands.add_parser("controller", help="run the server of a Kubernetes cluster")
    controller.add_argument("--lock-fd", type=int, help="the lock, handed over by a restart")
    controller.add_argument("--listen", metavar="HOST:PORT", help="answer REST there too, to whoever shows a token")
    controller.add_argument("--kubeconfig", help="files, with colons between; unset: $KUBECONFIG, else as a pod")
    controller.add_argument("--context", help="of these files; unset: the current one")
    controller.add_argument("--namespace", default="ganger-system", help="where the controller's own objects are")
    controller.add_argument("--door", metavar="HOST:PORT", required=True, help="where launchers connect to")
    controller.add_argument("--image", default="python:3.13-slim", help="of jobs that name none")
    controller.add_argument(
        "--node-lost-after",
        metavar="SECONDS",
        type=float,
        help="without a word from a node and its jobs' launchers; unset: 300, as its pods are evicted",
    )
    gangjobs = errands.add_parser("gangjobs", help="ask a Kubernetes cluster as one's own kubeconfig says")
    gangjobs.add_argument("--context", required=True)
    gangjobs.add_argument("--namespace", help="unset: the context's")
    replay = errands.add_parser("replay", help="decide a stretch of the log again and compare")
    replay.add_argument("--from", dest="first", type=int, default=1, help="seq of the first event")
    replay.add_argument("--to", dest="last", type=int, help="seq of the last event; unset: the newest")
    replay.add_argument("--json", action="store_true", help="one object: {first, last, rounds, difference}")
    doctor = errands.add_parser("doctor", help="check this machine, the state directory and the server")
    doctor.add_argument("--restore-to", type=int, metavar="SEQ", help="take the event log back to an event")
    sim = errands.add_parser("sim", help="read a trace, and write or simulate it; prints JSON")
    _add_sim(sim)
    for errand in (serve, controller, gangjobs, replay, doctor, sim):
        errand.add_argument("--home", type=Path, help="the state directory; unset: as `ganger` finds it")
    return parser


def _add_sim(sim: argparse.ArgumentParser) -> None:
    sim.add_argument("what", choices=["import", "run", "compare"])
    sim.add_argument("trace", type=Path, nargs="?", help="unset with --from-log")
    sim.add_argument("--from-log", type=Path, help="instead of a trace the log of a server of ganger's")
    sim.add_argument("--since-ms", type=int, help="of the log: so long before its newest event, and what followed")
    sim.add_argument("--to", type=Path, help="import: the file to write")
    sim.add_argument("--format", default="", help="of the trace; unset: as its first line tells")
    sim.add_argument("--policy", help="run: the queue order; unset: the default")
    sim.add_argument("--document", type=Path, action="append", default=[], help="instead of --policy a whole document")
    sim.add_argument("--nodes", type=int)
    sim.add_argument("--cluster", type=Path, help="a file of nodes, instead of --nodes")
    sim.add_argument("--gpus", type=int, default=8, help="of each node")
    sim.add_argument("--gpu-type", default="")
    sim.add_argument("--start-ms", type=int)
    sim.add_argument("--checkpoint-ms", type=int)
    sim.add_argument("--checkpoint-cost-ms", type=int, default=0, dest="write_ms")
    sim.add_argument("--faults", type=Path, help="a record of nodes that failed; what follows is of it")
    sim.add_argument("--fault-rate", help="times as many")
    sim.add_argument("--fault-seed", type=int)
    sim.add_argument("--fault-nodes", type=int, help="of how many nodes the record is; unset: those with a fault")
    sim.add_argument("--detect-ms", type=int)
    sim.add_argument("--repair-ms", type=int, help="unset: as recorded")
    sim.add_argument("--spares", type=int)
    sim.add_argument("--price", action="append", default=[], help="of an hour of a node: 12.50 or h100=98.3")
    sim.add_argument("--policies", help="compare: queue orders, or orders and scores, with commas between")
    sim.add_argument("--seeds", type=int, default=1, help="compare: runs of each policy that draws")
    sim.add_argument("--report", type=Path, help="compare: write an HTML page there")
    sim.add_argument("--log", type=Path, help="run: write every event there")


def _serve(home: settings.Home, lock_fd: int | None, listen: str | None) -> int:
    from ganger.wiring.place import CannotServe
    from ganger.wiring.serve import serve

    try:
        serve(home, lock_fd, listen)
    except CannotServe as error:
        _say(error.detail, f"next: {error.next}")
        return CANNOT
    return OK


def _gangjobs(arguments: argparse.Namespace) -> int:
    try:
        from ganger.wiring.in_context import ask
    except ModuleNotFoundError as error:
        why = {"code": "not_installed", "detail": _lacking(error), "next": EXTRA, "exit_code": CANNOT}
        sys.stdout.write(json.dumps({"error": why}) + "\n")
        return OK
    return ask(arguments.context, arguments.namespace)


def _lacking(error: ModuleNotFoundError) -> str:
    """What of ganger is not installed. The error itself when it is not that."""
    if (error.name or "").partition(".")[0] in ("", "ganger"):
        raise error
    return f"what ganger needs for Kubernetes is not installed: there is no module {error.name}"


def _controller(home: settings.Home, arguments: argparse.Namespace) -> int:
    from ganger.wiring.place import CannotServe

    try:
        from ganger.wiring.controller import control
    except ModuleNotFoundError as error:
        _say(_lacking(error), f"next: {EXTRA}")
        return CANNOT

    try:
        control(home, arguments)
    except CannotServe as error:
        _say(error.detail, f"next: {error.next}")
        return CANNOT
    return OK


def _replay(home: settings.Home, arguments: argparse.Namespace) -> int:
    from ganger.engine.eventlog.event_log import EventLog
    from ganger.engine.replay import replay
    from ganger.errors import Refused
    from ganger.registry import policies

    if not home.database.exists():
        _say(f"there is no event log at {home.database}")
        return CANNOT
    try:
        found = replay(EventLog(home.database), policies(), arguments.first, arguments.last)  # type: ignore[arg-type]
    except Refused as refused:
        _say(refused.detail, f"next: {refused.next}")
        return CANNOT
    except KeyError as error:
        _say(f"the log was written under policy {error}, which is not installed")
        return CANNOT
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _told(found))
    return OK if found.difference is None else DIFFERS


def _told(found: "Replay") -> Iterator[str]:
    """What a replay found, in sentences."""
    if found.difference is None:
        yield f"events {found.first} to {found.last}: {found.rounds} rounds decided again, all the same"
        return
    yield f"the round after event {found.difference.seq} comes out otherwise"
    yield from (f"  in the log: {decision}" for decision in found.difference.logged or ("nothing",))
    yield from (f"  decided now: {decision}" for decision in found.difference.planned or ("nothing",))


def _doctor(home: settings.Home, seq: int | None) -> int:
    from ganger.errors import Refused
    from ganger.wiring.doctor import examine, restore_to
    from ganger.wiring.place import CannotServe

    if seq is not None:
        try:
            kept = restore_to(home, seq)
        except (Refused, CannotServe) as error:
            _say(error.detail, f"next: {error.next}")
            return CANNOT
        _say(f"the log ends with event {seq} now; as it was before: {kept}")
    checks = list(examine(home))
    sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    return OK if all(check.ok for check in checks) else DIFFERS


def _sim(arguments: argparse.Namespace) -> int:
    from ganger.wiring.sim import sim

    return sim(arguments)


def _say(*lines: str) -> None:
    sys.stderr.writelines(f"ganger: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
