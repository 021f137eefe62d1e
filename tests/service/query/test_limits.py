"""The latest end of a running job."""

from ganger.model.units import HOUR_MS
from tests.service.world import Embedded


def test_a_running_job_ends_with_its_time_limit(world: Embedded) -> None:
    """The limit counts from the decision to start: from then on nodes are allocated."""
    name, other = world.submit(limits={"time": "2h"}), world.submit()
    job = world.until(name, "running")
    (decided,) = world.service.events(after=0, gang=name, limit=100, kinds=("decided",))
    assert job.ends_by_ms == decided.at_ms + 2 * HOUR_MS
    assert world.until(other, "running").ends_by_ms is None, "it has no limit"
    waits = world.submit(after=[{"job": other}], limits={"time": "2h"})
    assert world.service.job(waits).ends_by_ms is None
    world.service.stop(name)
    assert world.ended(name).ends_by_ms is None
