"""The agent of a node of a Kubernetes cluster: `python -m ganger.agent --node NAME`.

It reads the notices of the machine's cloud, and taints the node. With `--controller` it samples the node, keeps a
history, and hands each sample to the controller. It runs until a signal stops it.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from ganger.agent.controller_link import ControllerLink
from ganger.agent.node_agent import NodeAgent
from ganger.agent.notice_watch import AUTO, UnknownCloudError, watch
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.agent.taint_process import TaintProcess
from ganger.settings import SettingsError, log_level

OK, FAILED = 0, 5
TOKEN: Final = Path("/var/run/secrets/ganger/token")
STATE: Final = Path("/var/lib/ganger-agent")
HISTORY: Final = "telemetry.db"
PATHS: Final = {
    "proc": "as /proc",
    "sys": "as /sys",
    "mounts": "as /proc/self/mountinfo",
    "files": "the root below which mounts are",
    "kernel_log": "as /dev/kmsg",
    "nvml_library": "the driver's libnvidia-ml.so.1; unset: the one that the loader finds",
    "pod_resources": "the kubelet's socket of devices of pods; unset: not asked",
}
"""Attributes of SamplingRoots that are paths, each an option."""


def main(argv: Sequence[str]) -> int:
    """Run the agent, and return its exit code: 0, or 5 with a message on stderr."""
    arguments = _parser().parse_args(argv)
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    try:
        log_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(format=log_format, level=logging.INFO)
        logging.getLogger("ganger").setLevel(log_level(os.environ))
        with ExitStack() as stack:
            stack.enter_context(_announcing(arguments))
            if arguments.controller is not None:
                stack.enter_context(_sampling(arguments))
            is_over.wait()
    except (SettingsError, UnknownCloudError, OSError) as error:
        sys.stderr.write(f"ganger: {error}\n")
        return FAILED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.agent", description=__doc__)
    parser.add_argument("--node", required=True, metavar="NAME", help="the node that it runs on")
    parser.add_argument("--notices", default=AUTO, metavar="CLOUD", help="whose notices: auto, or as in settings.toml")
    parser.add_argument("--kubeconfig", type=Path, help="kubeconfig file; unset: in-cluster")
    parser.add_argument(
        "--controller", type=Path, metavar="DIRECTORY", help="files url and ca.crt of the controller; unset: no samples"
    )
    parser.add_argument("--token", type=Path, default=TOKEN, help="file with the token for the controller")
    parser.add_argument("--state", type=Path, default=STATE, metavar="DIRECTORY", help="where the history is kept")
    for name, text in PATHS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="PATH", help=text)
    parser.add_argument("--dcgm-exporter", metavar="URL", help="metrics page of a DCGM exporter; unset: none")
    return parser


@contextmanager
def _sampling(arguments: argparse.Namespace) -> Iterator[None]:
    """Sample the node, and hand samples to the controller, for the duration of the context. Raise OSError."""
    places = {name: getattr(arguments, name) for name in (*PATHS, "dcgm_exporter")}
    roots = SamplingRoots(**{name: place for name, place in places.items() if place is not None})
    arguments.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = ControllerLink(arguments.node, arguments.controller, arguments.token)
    agent = NodeAgent(arguments.node, roots, arguments.state / HISTORY, link.offer)
    with link.running(), agent.running():
        yield


@contextmanager
def _announcing(arguments: argparse.Namespace) -> Iterator[None]:
    """Taint the node at a notice for the duration of the context. Raise UnknownCloudError."""
    taint = TaintProcess(arguments.node, arguments.kubeconfig)
    with watch(arguments.notices, taint.announce):
        try:
            yield
        finally:
            taint.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
