"""MXNet, and what else is built on ps-lite (BytePS): a scheduler at which servers and workers meet.

Names: ps-lite's docs/env.md, and those that Kubeflow's MXJob gave. A role that is neither scheduler nor server is a
worker to ps-lite, which knows no other. Scheduler and servers end when the workers have; the job ends with those.
"""

import json
from collections.abc import Mapping
from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import Placed, shared_environment

NAME: Final = "mxnet"
DOC: Final = "MXNet and ps-lite: roles scheduler, server and worker"
RESERVED: Final = (
    *SHARED,
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_SERVER",
    "DMLC_NUM_WORKER",
    "DMLC_WORKER_ID",
    "DMLC_USE_KUBERNETES",
    "MX_CONFIG",
)
ROLES: Final = ("scheduler", "server", "worker")
NEEDS: Final = "mxnet"

_WORKER: Final = "worker"


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`. The scheduler has rank 0, and so the address where all meet."""
    role = placed.share_of(rank).role
    given = shared_environment(placed, rank) | {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": placed.host,
        "DMLC_PS_ROOT_PORT": str(placed.port),
        "DMLC_NUM_SERVER": str(len(placed.roles.get("server", ()))),
        "DMLC_NUM_WORKER": str(len(placed.roles.get(_WORKER, ()))),
        # The scheduler then listens at every address of its machine: the one that all are given may be a proxy's.
        "DMLC_USE_KUBERNETES": "1",
        "MX_CONFIG": _config(placed, rank),
    }
    return given | ({"DMLC_WORKER_ID": str(placed.role_rank(rank))} if role == _WORKER else {})


def lacks(counts: Mapping[str, int]) -> str | None:
    """What keeps ps-lite from working with so many processes of each role."""
    asked = "roles: {scheduler: {run: COMMAND}, server: {count: 1, run: COMMAND}}, and run for the workers"
    if counts.get("scheduler") != 1:
        return f"needs one scheduler, at which all meet, and has {counts.get('scheduler', 'none')}: write {asked}"
    missing = [role for role in ("server", _WORKER) if role not in counts]
    return f"needs a {missing[0]}, and has none: write {asked}" if missing else None


def ends(placed: Placed) -> tuple[int, ...]:
    """The workers, where there are others."""
    return placed.roles.get(_WORKER, ()) if len(placed.roles) > 1 else ()


def _config(placed: Placed, rank: int) -> str:
    cluster = {
        role: [{"url": placed.share_of(each).address, "port": _port(placed, each)} for each in ranks]
        for role, ranks in placed.roles.items()
    }
    task = {"type": placed.share_of(rank).role, "index": placed.role_rank(rank)}
    return json.dumps({"cluster": cluster, "labels": dict.fromkeys(cluster, ""), "task": task})


def _port(placed: Placed, rank: int) -> int:
    return placed.port if placed.share_of(rank).role == "scheduler" else placed.port_of(rank)
