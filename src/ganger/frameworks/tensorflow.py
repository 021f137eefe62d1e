"""TensorFlow: TF_CONFIG lists every process with its role and a port of its own.

A gang of workers only is for MultiWorkerMirroredStrategy; chief, ps and evaluator are roles. Source:
tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py. The evaluator sees the cluster but is not
part of it. Parameter servers and evaluators never end: the job ends with the other roles.
"""

import json
from collections.abc import Mapping
from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment

NAME: Final = "tensorflow"
DOC: Final = "tf.distribute: TF_CONFIG for MultiWorkerMirrored and parameter servers"
RESERVED: Final = (*SHARED, "TF_CONFIG")
ROLES: Final = ("chief", "master", "worker", "ps", "evaluator")
NEEDS: Final = "tensorflow"

_EVALUATOR: Final = "evaluator"
_ENDLESS: Final = ("ps", _EVALUATOR)


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    cluster = {
        role: [placed.endpoint(peer) for peer in ranks] for role, ranks in placed.roles.items() if role != _EVALUATOR
    }
    task = {"type": placed.share_of(rank).role, "index": placed.role_rank(rank)}
    return shared_environment(placed, rank) | {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
    }


def lacks(counts: Mapping[str, int]) -> str | None:
    """Return why tf.distribute cannot work with these numbers of processes of each role, None if it can."""
    if all(role in _ENDLESS for role in counts):
        return "has no process that trains: write run for the workers, or roles.chief"
    chiefs = counts.get("chief", 0) + counts.get("master", 0)
    if chiefs > 1:
        return f"can have one chief or master, and has {chiefs}: write one of them, with count 1"
    evaluators = counts.get(_EVALUATOR, 0)
    return f"can have one evaluator, and has {evaluators}: write count 1" if evaluators > 1 else None


def ends(placed: PlacedGang) -> tuple[int, ...]:
    """Return the ranks whose end is the end of the job, if other ranks never end."""
    if not any(role in placed.roles for role in _ENDLESS):
        return ()
    return tuple(rank for role, ranks in placed.roles.items() if role not in _ENDLESS for rank in ranks)
