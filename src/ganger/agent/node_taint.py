"""The taint by which the agent announces the end of its node, to the controller and to every other scheduler.

Its account may change nothing of another node, and of its own nothing else: an admission policy says so. A process of
its own writes it (`taint_process`).
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError
from ganger.kubeapi.objects import Node, Object
from ganger.kubeapi.request import ObjectRef, Program
from ganger.kubeapi.resources import NODES

TAINT: Final = "ganger.dev/preempted"
"""Its value is the end of the notice in Unix seconds."""
RETRY_S: Final = 1.0
OK, FAILED = 0, 5
PROGRAM: Final = Program(
    "ganger-agent", "ganger.dev/created-by", "ganger install --dry-run --agent | kubectl apply -f -"
)
_log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Have a node have the taint, or none; try again until it is done. Return 0, or 5 with a message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m ganger.agent.node_taint", description=__doc__)
    parser.add_argument("--node", required=True, metavar="NAME")
    parser.add_argument("--kubeconfig", type=Path, help="kubeconfig file; unset: in-cluster")
    parser.add_argument("--end", type=int, metavar="SECONDS", help="Unix time of the node's end; unset: no taint")
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        asyncio.run(_announce(arguments))
    except CredentialsError as error:
        sys.stderr.write(f"ganger: {error}\n")
        return FAILED
    return OK


async def _announce(arguments: argparse.Namespace) -> None:
    """Write the taint. Raise CredentialsError."""
    files = arguments.kubeconfig
    credentials = Credentials.from_kubeconfig([files]) if files else Credentials.in_cluster()
    is_logged = False
    async with ApiClient(credentials, PROGRAM) as api:
        while True:
            try:
                await _write(api, arguments.node, arguments.end)
            except ApiError as error:
                if not is_logged:
                    remedy = f"; {error.remedy}" if error.remedy else ""
                    _log.warning("the taint of %s is not written yet: %s%s", arguments.node, error, remedy)
                is_logged = True
                await asyncio.sleep(RETRY_S)
            else:
                return


async def _write(api: ApiClient, name: str, end_s: int | None) -> None:
    """Have the node have the taint, or none. Raises ApiError."""
    node = await api.get(NODES, name)
    if steps := _steps(node, end_s):
        await api.patch(ObjectRef(NODES, "", name), steps)


def _steps(node: Node, end_s: int | None) -> list[Object]:
    """Return the patch of a node, which conflicts if it has changed since; empty if there is nothing to do."""
    wanted = None if end_s is None else {"key": TAINT, "value": str(end_s), "effect": "NoSchedule"}
    taints = node.spec.taints
    at = next((index for index, taint in enumerate(taints) if taint.key == TAINT), None)
    step: Object = {"op": "add", "path": "/spec/taints/-", "value": wanted}
    if wanted is None and at is None:
        return []
    if wanted is None:
        step = {"op": "remove", "path": f"/spec/taints/{at}"}
    elif at is not None:
        if taints[at].value == wanted["value"]:
            return []
        step |= {"op": "replace", "path": f"/spec/taints/{at}"}
    elif not taints:
        step |= {"path": "/spec/taints", "value": [wanted]}
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}, step]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
