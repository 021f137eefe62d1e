"""Largest jobs that fit now, as in `ganger fit`: the most nodes of each form, in the cluster and in one domain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.explain.max_fit import SizeRequest, largest_sizes
from ganger.model.decision import Start
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.units import parse_duration_ms
from ganger.model.views.overview import Size, Sizes
from tests.laws import draws
from tests.laws.liveness import apply_flags
from tests.laws.policies import POLICIES
from tests.laws.safety import fingerprint
from tests.laws.world import World
from tests.pictures.film import Film

TABLE = {
    "an idle cluster": ("r1/n1:.... r1/n2:.... r2/n3:....", "", "", "4: 3, 2 in r1; 2: 3, 2 in r1; 1: 3, 2 in r1"),
    "some GPUs in use": ("r1/n1:AA.. r1/n2:.... r2/n3:....", "", "", "4: 2, 1 in r1; 2: 3, 2 in r1; 1: 3, 2 in r1"),
    "types": (
        "r1/n1:..,h100 r1/n2:..,a100",
        "",
        "",
        "2a100: 1, 1 in r1; 1a100: 1, 1 in r1; 2h100: 1, 1 in r1; 1h100: 1, 1 in r1",
    ),
    "quota": ("r1/n1:.... r1/n2:....", "q=4,borrow=0", "", "4: 1, 1 in r1; 2: 2, 2 in r1; 1: 2, 2 in r1"),
    "a user's limit": ("r1/n1:.... r1/n2:....", "q=,user_gpus=2", "", "4: 0; 2: 1, 1 in r1; 1: 2, 2 in r1"),
    "no GPUs": ("r1/n1:-,cpu=4 r1/n2:a,cpu=4", "", "", "0: 1, 1 in r1; 0: 2, 2 in r1; 0: 2, 2 in r1"),
    "capacity that is reserved": ("r1/n1:AA.. A,time=1h", "", "C:1x4,q=q", "4: 0; 2: 0; 1: 0"),
    "beside a reservation": ("r1/n1:AA.. A,time=1h", "", "C:1x4,q=q; 30m", "4: 0; 2: 1, 1 in r1; 1: 1, 1 in r1"),
    "nothing": ("r1/n1:AAAA", "", "", "4: 0; 2: 0; 1: 0"),
}  # fmt: skip


def summary(sizes: Sizes) -> str:
    forms: dict[tuple[int, str, int], list[Size]] = {}
    for size in sizes.items:
        forms.setdefault((size.gpus, size.gpu_type, size.cpu_milli), []).append(size)
    texts = []
    for (gpus, kind, _), (whole, inner) in forms.items():
        inside = f", {inner.nodes} in {inner.domain}" if inner.nodes else ""
        texts.append(f"{gpus}{kind}: {whole.nodes}{inside}")
    return "; ".join(texts)


@pytest.mark.parametrize(("cluster", "queues", "happens", "says"), TABLE.values(), ids=TABLE)
def test_what_fits_now(cluster: str, queues: str, happens: str, says: str) -> None:
    film, time_ms = Film(POLICIES["dynamic"], cluster, queues or "q="), None
    for action in filter(None, map(str.strip, happens.split(";"))):
        if action[0].isdigit():
            time_ms = parse_duration_ms(action)
            continue
        film.do(action)
        film.run_cycles()
    spec = JobSpec(queue="q", limits=Limits(time_ms=time_ms), run="x")
    job = Job(id=" ", user="ann", spec=spec, origin=Origin(directory="/"))
    assert summary(largest_sizes(film.state, job, SizeRequest(), film.now_ms, film.policy)) == says


@given(data=st.data())
def test_a_reported_size_starts_when_it_is_submitted(data: st.DataObject) -> None:
    world = World(POLICIES["dynamic"], data.draw(draws.nodes()), data.draw(draws.queues()))
    for _ in range(data.draw(st.integers(1, 4))):
        world.draw_events(data)
        world.run_cycle()
    if not world.state.ready:
        return
    queue = data.draw(st.sampled_from(sorted(world.state.document.queues)))
    user = data.draw(st.sampled_from(draws.USERS))
    job = Job(id="new", user=user, spec=JobSpec(queue=queue, run="x"), origin=Origin(directory="/"))
    before = fingerprint(world.state)
    sizes = largest_sizes(world.state, job, SizeRequest(), world.now_ms, world.policy)
    assert fingerprint(world.state) == before
    size = data.draw(st.sampled_from(sizes.items)) if sizes.items else None
    if size is None or not size.nodes:
        assert size is None or (size.reason and size.reason.sentence)
        return
    spec = apply_flags(job.spec, size.flags)
    assert world.submit(Job(id="new", user=user, spec=spec, origin=Origin(directory="/")))
    started = [
        decision.gang
        for decision in plan(world.state, world.now_ms, world.policy).decisions
        if isinstance(decision, Start)
    ]
    assert "new" in started, f"{size.flags} would start, it was said"
