"""The server of a Kubernetes cluster: `python -m ganger.controller`. Ends with 0, or with 5 and a sentence on
stderr."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ganger import settings
from ganger.errors import KUBERNETES_EXTRA, missing_module
from ganger.server.state_directory import ServerStartError

OK, CANNOT = 0, 5


def main(argv: Sequence[str]) -> int:
    """Run the controller until it is told to end, and return its exit code."""
    arguments = _parser().parse_args(argv)
    home = settings.Home(arguments.home.absolute()) if arguments.home else settings.home(os.environ)
    try:
        from ganger.controller.assembly import control
    except ModuleNotFoundError as error:
        _say(missing_module(error), f"next: {KUBERNETES_EXTRA}")
        return CANNOT
    try:
        control(home, arguments)
    except ServerStartError as error:
        _say(error.detail, f"next: {error.next}")
        return CANNOT
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.controller", description=__doc__)
    parser.add_argument("--home", type=Path, help="the state directory; unset: as `ganger` finds it")
    parser.add_argument("--lock-fd", type=int, help="the lock, handed over by a restart")
    parser.add_argument("--listen", metavar="HOST:PORT", help="answer REST there too, to whoever shows a token")
    parser.add_argument("--kubeconfig", help="files, with colons between; unset: $KUBECONFIG, else as a pod")
    parser.add_argument("--context", help="of these files; unset: the current one")
    parser.add_argument("--namespace", default="ganger-system", help="where the controller's own objects are")
    parser.add_argument("--door", metavar="HOST:PORT", required=True, help="where launchers connect to")
    parser.add_argument("--image", default="python:3.13-slim", help="of jobs that name none")
    parser.add_argument(
        "--node-lost-after",
        metavar="SECONDS",
        type=float,
        help="without a word from a node and its jobs' launchers; unset: 300, as its pods are evicted",
    )
    return parser


def _say(*lines: str) -> None:
    sys.stderr.writelines(f"ganger: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
