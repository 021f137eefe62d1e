"""The server of a Kubernetes cluster: `python -m ganger.controller`.

It exits with 0, or with 5 and a message on stderr.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ganger import settings
from ganger.errors import KUBERNETES_EXTRA, missing_module_message
from ganger.server.state_directory import ServerStartError

OK, FAILED = 0, 5


def main(argv: Sequence[str]) -> int:
    """Run the controller until a signal stops it, and return its exit code."""
    arguments = _parser().parse_args(argv)
    home = settings.Home(arguments.home.absolute()) if arguments.home else settings.home(os.environ)
    try:
        from ganger.controller.assembly import control
    except ModuleNotFoundError as error:
        _print_error(missing_module_message(error), f"next: {KUBERNETES_EXTRA}")
        return FAILED
    try:
        control(home, arguments)
    except ServerStartError as error:
        _print_error(error.detail, f"next: {error.next}")
        return FAILED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.controller", description=__doc__)
    parser.add_argument("--home", type=Path, help="the state directory; unset: as for `ganger`")
    parser.add_argument("--lock-fd", type=int, help="file descriptor of the lock, passed on by a restart")
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve REST there too, with tokens")
    parser.add_argument(
        "--kubeconfig", help="kubeconfig files, separated by colons; unset: $KUBECONFIG, else in-cluster"
    )
    parser.add_argument("--context", help="kubeconfig context; unset: the current one")
    parser.add_argument("--namespace", default="ganger-system", help="namespace of the controller's own objects")
    parser.add_argument(
        "--launcher-address", metavar="HOST:PORT", required=True, help="address to which launchers connect"
    )
    parser.add_argument("--pod", metavar="NAME", help="the controller's pod, which is labelled while it leads")
    parser.add_argument(
        "--store",
        metavar="DIRECTORY|URL",
        help="durable store of events and of logs of ended ranks: a directory, or s3://BUCKET/FOLDER; unset: none",
    )
    parser.add_argument("--image", default="python:3.13-slim", help="image of jobs that name none")
    parser.add_argument(
        "--git-image", metavar="IMAGE", help="image, with git and Python, of the pods that fetch code; unset: --image"
    )
    parser.add_argument(
        "--node-rules", type=Path, metavar="FILE", help="rules of the site for faults of nodes, if it is there"
    )
    parser.add_argument(
        "--node-lost-after",
        metavar="SECONDS",
        type=float,
        help="silence of a node and of its jobs' launchers; unset: 300, when its pods are evicted",
    )
    return parser


def _print_error(*lines: str) -> None:
    sys.stderr.writelines(f"ganger: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
