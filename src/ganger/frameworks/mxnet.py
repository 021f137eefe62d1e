"""MXNet, and other programs based on ps-lite (BytePS): servers and workers rendezvous at a scheduler.

Names: docs/env.md of ps-lite, and those of Kubeflow's MXJob. A role that is neither scheduler nor server is a worker to
ps-lite. Scheduler and servers end when the workers have ended, which ends the job.
"""

import json
from collections.abc import Mapping
from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment

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


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`. The scheduler has rank 0, and therefore the rendezvous address."""
    role = placed.share_of(rank).role
    environment = shared_environment(placed, rank) | {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": placed.host,
        "DMLC_PS_ROOT_PORT": str(placed.port),
        "DMLC_NUM_SERVER": str(len(placed.roles.get("server", ()))),
        "DMLC_NUM_WORKER": str(len(placed.roles.get(_WORKER, ()))),
        # The scheduler then listens at every address of its machine: the one that all are given may be a proxy's.
        "DMLC_USE_KUBERNETES": "1",
        "MX_CONFIG": _config(placed, rank),
    }
    return environment | ({"DMLC_WORKER_ID": str(placed.role_rank(rank))} if role == _WORKER else {})


def lacks(counts: Mapping[str, int]) -> str | None:
    """Return why ps-lite cannot work with these numbers of processes of each role, None if it can."""
    remedy = "roles: {scheduler: {run: COMMAND}, server: {count: 1, run: COMMAND}}, and run for the workers"
    if counts.get("scheduler") != 1:
        return f"needs one scheduler, at which all meet, and has {counts.get('scheduler', 'none')}: write {remedy}"
    missing = [role for role in ("server", _WORKER) if role not in counts]
    return f"needs a {missing[0]}, and has none: write {remedy}" if missing else None


def ends(placed: PlacedGang) -> tuple[int, ...]:
    """Return the workers, if there are other roles."""
    return placed.roles.get(_WORKER, ()) if len(placed.roles) > 1 else ()


def _config(placed: PlacedGang, rank: int) -> str:
    cluster = {
        role: [{"url": placed.share_of(peer).address, "port": _port(placed, peer)} for peer in ranks]
        for role, ranks in placed.roles.items()
    }
    task = {"type": placed.share_of(rank).role, "index": placed.role_rank(rank)}
    return json.dumps({"cluster": cluster, "labels": dict.fromkeys(cluster, ""), "task": task})


def _port(placed: PlacedGang, rank: int) -> int:
    return placed.port if placed.share_of(rank).role == "scheduler" else placed.port_of(rank)
