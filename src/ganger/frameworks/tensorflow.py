"""TensorFlow: TF_CONFIG names every process and its role, each at a port of its own.

A gang of workers alone is what MultiWorkerMirroredStrategy wants; chief, ps and evaluator are roles. Source:
tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py. The evaluator sees the cluster and is not
in it. Parameter servers and evaluators run for ever: the job ends with the others.
"""

import json
from collections.abc import Mapping
from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import Placed, shared_environment

NAME: Final = "tensorflow"
DOC: Final = "tf.distribute: TF_CONFIG for MultiWorkerMirrored and parameter servers"
RESERVED: Final = (*SHARED, "TF_CONFIG")
ROLES: Final = ("chief", "master", "worker", "ps", "evaluator")
NEEDS: Final = "tensorflow"

_EVALUATOR: Final = "evaluator"
_ENDLESS: Final = ("ps", _EVALUATOR)


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`."""
    cluster = {
        role: [placed.endpoint(each) for each in ranks] for role, ranks in placed.roles.items() if role != _EVALUATOR
    }
    task = {"type": placed.share_of(rank).role, "index": placed.role_rank(rank)}
    return shared_environment(placed, rank) | {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
    }


def lacks(counts: Mapping[str, int]) -> str | None:
    """What keeps tf.distribute from working with so many processes of each role."""
    if all(role in _ENDLESS for role in counts):
        return "has nobody who trains: write run for the workers, or roles.chief"
    chiefs = counts.get("chief", 0) + counts.get("master", 0)
    if chiefs > 1:
        return f"can have one chief or master, and has {chiefs}: write one of them, with count 1"
    evaluators = counts.get(_EVALUATOR, 0)
    return f"can have one evaluator, and has {evaluators}: write count 1" if evaluators > 1 else None


def ends(placed: Placed) -> tuple[int, ...]:
    """The ranks that the job ends with, where some run for ever."""
    if not any(role in placed.roles for role in _ENDLESS):
        return ()
    return tuple(rank for role, ranks in placed.roles.items() if role not in _ENDLESS for rank in ranks)
