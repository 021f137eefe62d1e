"""A decision to start becomes what each launcher runs: who gets which variables, which command, in which directory.

Pure but for the look-up of the framework. `wiring` gives it to backends as their `engine.ports.Compose`;
`engine.service` shows its first rank in a dry run.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from ganger.core.heal import DEFAULT_RETRIES
from ganger.engine.ports import LaunchPlan, RankPlan
from ganger.engine.refusal import Refused
from ganger.engine.registry import frameworks
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, JobSpec
from ganger.model.placed import PREFIX, RESERVED, Placed, PlacedNode, node_environment


def launch_plans(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> tuple[LaunchPlan, ...]:
    """One plan for each node of `start`, in rank order. `directory` is absolute: where the job runs.

    Nothing is inherited: a rank gets what travelled with the job, over it the job's `env`, over both what ganger sets.
    What it sets for all ranks of a node is in the plan's environment, and so reaches `setup` too.
    KeyError for a node that is not in `nodes`; Refused (unknown_framework) when the framework is gone since submission.
    """
    spec = job.spec
    framework = frameworks().get(spec.framework)
    if framework is None:
        raise Refused(
            "unknown_framework",
            f"framework {spec.framework} is not installed any more",
            next=f"install it again, or resubmit with one of {', '.join(sorted(frameworks()))}",
        )
    placed = place(start, job, nodes, directory)
    users = job.origin.environment | spec.env
    plans = []
    for node_rank, share in enumerate(start.shares):
        environment = users | _over(users, node_environment(placed, node_rank), RESERVED)
        ranks = []
        for rank in share.ranks:
            given = _over(users, framework.rank_environment(placed, rank), framework.RESERVED)
            own = {name: value for name, value in given.items() if environment.get(name) != value}
            ranks.append(RankPlan(rank=rank, environment=own))
        plans.append(
            LaunchPlan(
                gang=start.gang,
                node=share.node,
                generation=start.generation,
                directory=directory,
                setup=spec.setup,
                argv=argv_of(spec),
                environment=environment,
                ranks=tuple(ranks),
                checkpoint_directory=placed.checkpoint_directory,
                signal=spec.checkpoint.signal if spec.checkpoint else None,
            )
        )
    return tuple(plans)


def argv_of(spec: JobSpec) -> tuple[str, ...]:
    """What is executed for each rank: a shell line becomes an argument of /bin/sh."""
    return ("/bin/sh", "-c", spec.run) if isinstance(spec.run, str) else spec.run


def place(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> Placed:
    """What the framework may know of a generation."""
    spec, checkpoint = job.spec, job.spec.checkpoint
    return Placed(
        job_id=job.id,
        job_name=spec.name,
        generation=start.generation,
        nodes=tuple(_placed_node(share, nodes[share.node]) for share in start.shares),
        host=start.host,
        port=start.port,
        cpu_milli=spec.shape.cpu_milli,
        max_restarts=DEFAULT_RETRIES if spec.retry.max is None else spec.retry.max,
        checkpoint_directory=str(PurePosixPath(directory) / checkpoint.dir) if checkpoint else None,
        checkpoint_every_ms=checkpoint.every_ms if checkpoint else None,
        resume=checkpoint.resume if checkpoint else "auto",
    )


def _placed_node(share: NodeShare, node: Node) -> PlacedNode:
    return PlacedNode(
        name=node.name,
        address=node.address,
        ranks=share.ranks,
        devices=share.devices,
        gpus=tuple(node.device_ids[device] for device in share.devices) if node.device_ids else None,
    )


def _over(users: Mapping[str, str], given: Mapping[str, str], reserved: tuple[str, ...]) -> dict[str, str]:
    """What ganger sets for a rank, without the defaults that the user has a value for."""
    return {
        name: value for name, value in given.items() if name not in users or name in reserved or name.startswith(PREFIX)
    }
