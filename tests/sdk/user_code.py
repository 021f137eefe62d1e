"""A user's code as a type checker sees it: checked by mypy in strict mode (test_types.py), never run."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import assert_type

import ganger
from ganger.model.views.service_views import DryRun, EventRow, Explanation, JobView

client = ganger.Client()
job = client.run("python train.py", nodes=2, gpu="H100:8", env={"BS": 80}, retry={"max": 3})
assert_type(job, ganger.Job[None])
assert_type(client.submit(ganger.Job.load("job.yaml", priority="high")), ganger.Job[None])
assert_type(client.submit({"run": "true"}, nodes=2), ganger.Job[None])
assert_type(client.dry_run({"run": "true"}), DryRun)
assert_type(job.logs(rank=0, follow=True), Iterator[ganger.LogLine])
assert_type(job.wait(timeout_s=10), JobView)
assert_type(job.explain(), Explanation)
assert_type(job.events(), Iterator[EventRow])
assert_type(job.priority("high"), JobView)
assert_type(job.clone(nodes=4), ganger.Job[None])
assert_type(job.get().spec.nodes, int)
assert_type(ganger.wait("bert"), JobView)
assert_type(ganger.logs("bert", grep="loss"), Iterator[ganger.LogLine])


def ends_well(job: ganger.Job) -> bool:
    """Without a type argument, whatever it gives."""
    return job.wait().row.state == "succeeded"


@ganger.task(nodes=2, gpu=1)
def scored(model: str, *, shots: int = 0) -> float:
    """Return a score."""
    return len(model) / (shots + 1)


@ganger.task
def plain(number: int) -> list[str]:
    """Return a text; the decorator is bare."""
    return [str(number)]


assert_type(scored("m", shots=2), float)
assert_type(scored.remote("m", shots=2), ganger.Job[float])
assert_type(scored.remote("m").result(), float)
assert_type(scored.remote("m").results(), Sequence[float])
assert_type(client.call(plain, 3).result(timeout_s=60), list[str])
assert_type(plain.options(nodes=3).remote(3), ganger.Job[list[str]])


async def main() -> None:
    """Use the same interface, awaited."""
    client = ganger.AsyncClient()
    job = await client.run(["python", "train.py"], labels={"team": "nlp"})
    assert_type(job, ganger.AsyncJob[None])
    assert_type(job.logs(), AsyncGenerator[ganger.LogLine, None])
    assert_type(await job.wait(), JobView)
    assert_type(await (await client.call(scored, "m")).result(), float)
    async for each in client.list(state="running"):
        assert_type(await each.stop(), JobView)


client.run("true", nods=2)  # type: ignore[call-arg]
client.run("true", nodes=2.5)  # type: ignore[arg-type]
client.run("true", retry={"maximum": 2})  # type: ignore[typeddict-unknown-key]
job.logs(ranks=0)  # type: ignore[call-arg]
scored.remote(3)  # type: ignore[arg-type]
client.call(scored, "m", shot=1)  # type: ignore[call-arg]
