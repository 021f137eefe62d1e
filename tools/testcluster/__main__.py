"""`python -m tools.testcluster`: up, down, run, build, list. Targets of the Makefile call it.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 this machine cannot have a test cluster. `run` has its command's, or
0 where no cluster is built, which it says.
"""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

from tools.testcluster.cluster import (
    DEFAULT,
    NAME_VARIABLE,
    cluster,
    names,
    require_built,
    running_cluster,
    start,
    stop,
)
from tools.testcluster.programs import binaries, images, network_plugins
from tools.testcluster.programs.requirements import Unavailable, install_packages, require_nodes
from tools.testcluster.shape import find

UNAVAILABLE = 3


def main() -> int:
    arguments = _parser().parse_args()
    commands = {"up": _up, "down": _down, "run": _run, "build": _build, "list": _list}
    # A signal that ends this process ends what it started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return commands[arguments.command](arguments)
    except Unavailable as error:
        print(f"no test cluster: {error}", file=sys.stderr)
        return UNAVAILABLE
    except (OSError, RuntimeError, ValueError) as error:
        print(f"testcluster: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.testcluster", description="A real Kubernetes on this machine"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster and print its KUBECONFIG; builds what is missing first")
    up.add_argument("--nodes", type=int, default=2, help="real nodes: a containerd and a kubelet each (2)")
    up.add_argument("--fake-nodes", type=int, default=0, help="nodes that are only objects, by KWOK (0)")
    up.add_argument("--gpus", type=int, default=8, help="GPUs that a fake node says it has (8)")
    down = commands.add_parser("down", help="take a cluster down, or what a crash left of it")
    for command in (up, down):
        command.add_argument("--name", default=DEFAULT, help="clusters of different names live side by side")
    run = commands.add_parser("run", help="run a command beside a cluster that its tests may use, if one is built")
    run.add_argument("argv", nargs="+", metavar="COMMAND")
    build = commands.add_parser("build", help="build the programs and images, and start nothing")
    build.add_argument("--networks", action="store_true", help="with Multus and the plug-ins of several networks")
    build.add_argument("--install", action="store_true", help="install missing Debian packages first, with apt-get")
    commands.add_parser("list", help="clusters that are there, and their kubeconfig files")
    return parser


def _up(arguments: argparse.Namespace) -> int:
    requested = (arguments.nodes, arguments.fake_nodes, arguments.gpus)
    cluster = running_cluster(arguments.name)
    if cluster is None:
        # Remains of a crash are in the way of a new cluster.
        stop(arguments.name)
        cluster = start(arguments.name, requested, _report)
    elif (cluster.shape.nodes, cluster.shape.fake_nodes, cluster.shape.gpus) != requested:
        existing = f"{cluster.shape.nodes} real nodes and {cluster.shape.fake_nodes} fake ones"
        _report(f"a cluster with {existing} runs already: take it down first with `make cluster-down`")
        return 1
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    if not stop(arguments.name):
        _report(f"there is no cluster called {arguments.name}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Run a command with a cluster. It never builds: tests do not wait for a compiler."""
    environment = dict(os.environ)
    with ExitStack() as stack:
        if running_cluster() is None:
            try:
                require_built()
            except Unavailable as error:
                _report(f"no test cluster, so nothing is run: {error}")
                return 0
            started = stack.enter_context(cluster(f"run-{os.getpid()}", nodes=2))
            environment[NAME_VARIABLE] = started.shape.name
        return subprocess.run(arguments.argv, env=environment, check=False).returncode


def _build(arguments: argparse.Namespace) -> int:
    binaries.build(_report)
    if arguments.networks:
        network_plugins.build(_report)
    if arguments.install:
        install_packages()
    require_nodes()
    images.make(_report)
    return 0


def _list(_: argparse.Namespace) -> int:
    for name in names():
        shape = find(name)
        if shape is not None:
            state = "ready" if running_cluster(name) else "not ready"
            print(f"{name}: {shape.nodes} real nodes, {shape.fake_nodes} fake ones, {state}: {shape.kubeconfig}")
    return 0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
