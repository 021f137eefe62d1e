"""`ganger controller`: the controller of a Kubernetes cluster, which replaces this process.

The command line does not import the program `ganger.controller`: it only starts it.
"""

import os
import sys
from typing import Final, NoReturn

import click

from ganger import settings

_OPTIONS: Final = (
    *("kubeconfig", "context", "namespace", "launcher_address", "image", "git_image", "node_lost_after", "listen"),
    "store",
)


@click.command("controller")
@click.option(
    "--kubeconfig",
    metavar="FILES",
    help="Kubeconfig files, separated by colons (default: $KUBECONFIG, else the pod's service account).",
)
@click.option("--context", metavar="NAME", help="Context in these files (default: the current one).")
@click.option(
    "--namespace", default="ganger-system", show_default=True, help="Namespace of the controller's own objects."
)
@click.option(
    "--launcher-address", metavar="HOST:PORT", required=True, help="Address to which the launchers of jobs connect."
)
@click.option("--image", help="Container image of jobs that name none (default: a small one with Python).")
@click.option(
    "--git-image",
    metavar="IMAGE",
    help="Container image, with git and Python, of the pods that fetch code from repositories (default: that of jobs).",
)
@click.option(
    "--node-lost-after",
    metavar="SECONDS",
    type=click.IntRange(1),
    help="Time after which a node that is not ready, and on which no launcher is connected, is lost (default: 300, "
    "after which Kubernetes evicts its pods).",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the REST API there too, over TLS, to clients with a token.")
@click.option(
    "--store",
    metavar="DIRECTORY|URL",
    help="Durable store of events and of logs of ended ranks: a directory, or s3://BUCKET/FOLDER (default: none).",
)
def controller_command(**values: str | int | None) -> NoReturn:
    """Run the controller of a Kubernetes cluster in the foreground.

    The manifests of `ganger install` run it in the cluster; this command runs it on this machine. Exit code 5 means
    that it could not start.
    """
    home = settings.home(os.environ)
    argv = [sys.executable, "-P", "-m", "ganger.controller", "--home", str(home.path)]
    for name in _OPTIONS:
        if (value := values[name]) is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    sys.stdout.flush()
    # exec, not a child: signals reach the controller itself.
    os.execv(argv[0], argv)  # noqa: S606 - no shell needed
