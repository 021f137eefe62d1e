"""Notices of 30 s in the dialects of four clouds, in virtual time: a gang has saved before its machine goes."""

from datetime import UTC, datetime

import pytest

from ganger.agent.cloud_notices import DIALECTS, INTERVAL_S, Reply
from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.model import event as e
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.engine.scenes import listed_states, nodes, played, submit
from tools.metadata_service import MetadataService

NOTICE_MS = 30_000
READ_MS = round(1000 * INTERVAL_S)
"""The notice comes right after a reading."""


def _read_ms(cloud: str) -> int:
    """Return the time that a machine believes to have left when it reads the notice."""
    service, now = MetadataService(), datetime(2026, 11, 30, 6, tzinfo=UTC)
    service.now = lambda: now  # type: ignore[method-assign]
    service.notice_s = (NOTICE_MS - READ_MS) / 1000

    def exchange(method: str, path: str, headers: dict[str, str]) -> Reply:
        status, body = service.reply(method, path, {name.lower(): value for name, value in headers.items()})
        return Reply(status, body.decode(), now)

    notice = DIALECTS[cloud].read(exchange)  # type: ignore[arg-type]
    assert notice is not None
    return round(1000 * notice.left_s)


@pytest.mark.parametrize("cloud", DIALECTS)
@pytest.mark.parametrize(
    ("at_ms", "save_ms"), [(700, 1_000), (5_000, 27_500), (59_999, 9_000), (60_000, 20_000), (17 * MINUTE_MS, 15_000)]
)
def test_the_checkpoint_is_safe_before_the_machine_goes(cloud: str, at_ms: int, save_ms: int) -> None:
    """Also where the job would like more time than it has, and where it has just been started."""
    world = VirtualCluster(
        nodes(3, gpus=1), {"a-0": Behaviour(steps=2_000, checkpoint_every=9_999, save_ms=save_ms, stop_ms=200)}
    )
    saves = Checkpoint(grace_ms=10 * MINUTE_MS)
    world.at(0, submit("a-0", 2, 1, checkpoint=saves, retry=Retry(max=0)))
    world.at(at_ms + READ_MS, e.NodePreempted(node="n2", notice_ms=_read_ms(cloud)))
    world.lose(at_ms + NOTICE_MS, "n2")
    log = EventLog(MEMORY)
    played(world, log, until_ms=HOUR_MS)
    rows = log.rows(limit=10_000)
    begun_ms = rows[0].at_ms
    (safe,) = [row for row in rows if isinstance(row.event, e.Checkpointed)]
    assert at_ms + READ_MS + save_ms <= safe.at_ms - begun_ms <= at_ms + NOTICE_MS
    steps = [event.step for row in rows if isinstance(event := row.event, e.Progressed) and event.generation == 2]
    assert steps[0] == safe.event.step + 1, "it goes on where it saved"
    assert listed_states(log) == {"a-0": "succeeded"}
