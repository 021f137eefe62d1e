"""Turns a table of scenarios, name -> (cluster, queues, film), into tests.

Each scenario is played on a small cluster and again as if the cluster were large (`core.reservations.queue_rotation`).
"""

from collections.abc import Callable

import pytest

from ganger.core.reservations import queue_rotation
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

Table = dict[str, tuple[str, str, str]]


def scenarios(table: Table, policy: str = "priority") -> Callable[..., None]:
    """Return a test that plays every scenario of the table under a policy."""

    @pytest.mark.parametrize(("cluster", "queues", "film"), table.values(), ids=table)
    def play(cluster: str, queues: str, film: str, monkeypatch: pytest.MonkeyPatch) -> None:
        Film(POLICIES[policy], cluster, queues).play(film)
        monkeypatch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
        Film(POLICIES[policy], cluster, queues).play(film)

    return play
