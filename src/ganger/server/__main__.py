"""The server of a state directory and the tools that read its files: `python -m ganger.server serve|replay|doctor`.

serve exits with 0, or with 5 and a message on stderr. replay exits with 1 if a decision differs; it prints sentences
or, with --json, one object. doctor prints JSON and exits with 1 if it found a fault.
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


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code."""
    arguments = _parser().parse_args(argv)
    home = settings.Home(arguments.home.absolute()) if arguments.home else settings.home(os.environ)
    match arguments.subcommand:
        case "serve":
            return _serve(home, arguments.lock_fd, arguments.listen, is_insecure=arguments.insecure)
        case "replay":
            return _replay(home, arguments)
        case _:
            return _doctor(home, arguments.restore_to)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.server", description=__doc__)
    subcommands = parser.add_subparsers(dest="subcommand", required=True)
    serve = subcommands.add_parser("serve", help="run the server of a state directory in the foreground")
    serve.add_argument("--lock-fd", type=int, help="file descriptor of the lock, passed on by a restart")
    serve.add_argument("--listen", metavar="HOST:PORT", help="listen there too, for clients with a token")
    serve.add_argument("--insecure", action="store_true", help="no TLS there, even if it is beyond loopback")
    replay = subcommands.add_parser("replay", help="replay a range of the event log and compare the decisions")
    replay.add_argument("--from", dest="first", type=int, default=1, help="seq of the first event")
    replay.add_argument("--to", dest="last", type=int, help="seq of the last event (default: the newest)")
    replay.add_argument("--json", action="store_true", help="one object: {first, last, cycles, difference}")
    doctor = subcommands.add_parser("doctor", help="check this machine, the state directory and the server")
    doctor.add_argument("--restore-to", type=int, metavar="SEQ", help="restore the event log to an event")
    for subcommand in (serve, replay, doctor):
        subcommand.add_argument("--home", type=Path, help="the state directory (default: that of `ganger`)")
    return parser


def _serve(home: settings.Home, lock_fd: int | None, listen: str | None, *, is_insecure: bool) -> int:
    from ganger.server.assembly import serve
    from ganger.server.state_directory import ServerStartError

    try:
        serve(home, lock_fd, listen, is_insecure=is_insecure)
    except ServerStartError as error:
        _say(error.detail, f"next: {error.next}")
        return CANNOT
    return OK


def _replay(home: settings.Home, arguments: argparse.Namespace) -> int:
    from ganger.engine.eventlog.event_log import EventLog
    from ganger.engine.replay import replay
    from ganger.errors import RequestError
    from ganger.registry import policies

    if not home.database.exists():
        _say(f"there is no event log at {home.database}")
        return CANNOT
    try:
        result = replay(EventLog(home.database), policies(), arguments.first, arguments.last)  # type: ignore[arg-type]
    except RequestError as error:
        _say(error.detail, f"next: {error.next}")
        return CANNOT
    except KeyError as error:
        _say(f"the log was written under the policy {error}, which is not installed")
        return CANNOT
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(result), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _replay_lines(result))
    return OK if result.difference is None else DIFFERS


def _replay_lines(replay: "Replay") -> Iterator[str]:
    """Yield the result of a replay as sentences."""
    if replay.difference is None:
        yield f"events {replay.first} to {replay.last}: replayed {replay.cycles} cycles, all decisions are the same"
        return
    yield f"the scheduling cycle after event {replay.difference.seq} decides differently"
    yield from (f"  in the log: {decision}" for decision in replay.difference.logged or ("nothing",))
    yield from (f"  replayed: {decision}" for decision in replay.difference.planned or ("nothing",))


def _doctor(home: settings.Home, seq: int | None) -> int:
    from ganger.errors import RequestError
    from ganger.server.doctor import examine, restore_to
    from ganger.server.state_directory import ServerStartError

    if seq is not None:
        try:
            backup = restore_to(home, seq)
        except (RequestError, ServerStartError) as error:
            _say(error.detail, f"next: {error.next}")
            return CANNOT
        _say(f"restored the log to event {seq}; backup of the previous log: {backup}")
    checks = list(examine(home))
    sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    return OK if all(check.ok for check in checks) else DIFFERS


def _say(*lines: str) -> None:
    sys.stderr.writelines(f"ganger: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
