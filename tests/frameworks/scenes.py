"""Gangs as frameworks see them: two nodes with two processes each, and one of several roles."""

from ganger.framework_api.rank_environment import PlacedGang, PlacedNode

FOUR = PlacedGang(
    job_id="bert-7f3a",
    job_uid="bert-7f3a",
    job_name="bert",
    generation=3,
    nodes=(
        PlacedNode(name="n1", address="10.0.0.1", ranks=(0, 1), devices=(0, 1), cpu_milli=5500),
        PlacedNode(name="n2", address="10.0.0.2", ranks=(2, 3), devices=(1, 3), cpu_milli=5500),
    ),
    host="10.0.0.1",
    port=29511,
    max_restarts=3,
    checkpoint_directory="/data/ckpt",
    checkpoint_every_ms=90_500,
)
"""Two nodes with two processes each, and two devices."""


def with_roles(*roles: str) -> PlacedGang:
    """Place a process of each role, two of the second, on two nodes in turn."""
    names = [roles[0], roles[1], roles[1], *roles[2:]]
    nodes = tuple(
        PlacedNode(name=f"n{rank % 2 + 1}", address=f"10.0.0.{rank % 2 + 1}", ranks=(rank,), role=role, cpu_milli=1000)
        for rank, role in enumerate(names)
    )
    return PlacedGang(
        job_id="bert-7f3a",
        job_uid="bert-7f3a",
        job_name="bert",
        generation=1,
        nodes=nodes,
        host="10.0.0.1",
        port=29511,
        max_restarts=0,
        checkpoint_directory="/data/ckpt",
    )
