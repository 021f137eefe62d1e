"""`ganger controller`: the server of a Kubernetes cluster, in the place of this process.

It is the program `ganger.controller`, which no face loads: this says how to start it.
"""

import os
import sys
from typing import Final, NoReturn

import click

from ganger import settings

_OPTIONS: Final = ("kubeconfig", "context", "namespace", "door", "image", "node_lost_after", "listen")


@click.command("controller")
@click.option("--kubeconfig", metavar="FILES", help="With colons between; unset: $KUBECONFIG, else as a pod.")
@click.option("--context", metavar="NAME", help="Of these files; unset: the current one.")
@click.option("--namespace", default="ganger-system", show_default=True, help="Where its own objects are.")
@click.option("--door", metavar="HOST:PORT", required=True, help="Where the launchers of jobs connect to.")
@click.option("--image", help="Of jobs that name none; unset: a small one with Python.")
@click.option(
    "--node-lost-after",
    metavar="SECONDS",
    type=click.IntRange(1),
    help="How long a node that is not ready is waited for where no launcher of a job there is connected; unset: 300, "
    "after which Kubernetes evicts its pods.",
)
@click.option("--listen", metavar="HOST:PORT", help="Answer REST there too, over TLS, to whoever shows a token.")
def controller_command(**given: str | int | None) -> NoReturn:
    """Run the controller of a Kubernetes cluster until it is told to end.

    What `ganger install` prints runs it in the cluster; here it runs on this machine. Exits with 5 when it cannot.
    """
    home = settings.home(os.environ)
    words = [sys.executable, "-P", "-m", "ganger.controller", "--home", str(home.path)]
    for name in _OPTIONS:
        if (value := given[name]) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    sys.stdout.flush()
    # In its place: a signal that is to end it reaches it.
    os.execv(words[0], words)  # noqa: S606 - there is nothing for a shell to do
