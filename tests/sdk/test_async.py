"""The asynchronous client: the same verbs, many at once, on one event loop."""

import asyncio
from pathlib import Path

import pytest

from ganger import AsyncClient, AsyncJob, BadRequest, Client, JobFailed, NotFound, TimedOut, Unreachable
from ganger.client import Client as LocalClient
from ganger.settings import Home
from tests.sdk.places import waits_for
from tests.sdk.work import divided
from tests.waiting import DEADLINE_S


def test_a_job_from_its_first_word_to_its_end(home: Path, folder: Path) -> None:
    async def main() -> None:
        client = AsyncClient(home)
        job = await client.run("echo a; echo b >&2", name="async")
        assert sorted([line.text async for line in job.logs(follow=True)]) == ["a", "b"]
        assert (await job.wait(DEADLINE_S)).row.state == "succeeded"
        assert await job.result() is None
        assert "succeeded" in (await job.explain()).sentence
        assert "submitted" in [event.kind async for event in job.events()]
        assert [each.id async for each in client.list(name="async")] == [job.id]
        again = await (await client.job("async")).retry()
        assert (await again.wait(DEADLINE_S)).row.state == "succeeded"
        assert (await client.dry_run({"run": "true"})).starts_now
        assert await (await client.call(divided, 6, 3)).result(DEADLINE_S) == 2
        with pytest.raises(ZeroDivisionError):
            await (await client.call(divided, 6, 0)).result(DEADLINE_S)

    asyncio.run(main())


def test_errors_are_the_same(home: Path, folder: Path) -> None:
    async def main() -> None:
        client = AsyncClient(home)
        with pytest.raises(NotFound):
            await client.job("nobody")
        with pytest.raises(BadRequest):
            await client.run("true", nodes=0)
        with pytest.raises(JobFailed):
            await (await client.run("exit 1")).result(DEADLINE_S)

    asyncio.run(main())


def test_an_element_of_an_array_is_waited_for(home: Path, folder: Path) -> None:
    async def kinds(job: AsyncJob[None]) -> list[str]:
        return [event.kind async for event in job.events(follow=True)]

    async def main() -> None:
        client = AsyncClient(home)
        array = await client.run(waits_for(folder / "go"), array="0-1%1")
        begun, untouched = [await client.job(f"{array.id}[{index}]") for index in range(2)]
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(each.wait(DEADLINE_S)) for each in (begun, untouched)]
            async for line in begun.logs(follow=True):
                assert line.text in ("waits", "went")
                (folder / "go").touch()
        assert [wait.result().row.state for wait in waits] == ["succeeded", "succeeded"]
        (folder / "go").unlink()
        array = await client.run(waits_for(folder / "go"), array="0-1%1")
        untouched = await client.job(f"{array.id}[1]")
        wait = asyncio.create_task(untouched.wait(DEADLINE_S))
        story = asyncio.create_task(kinds(untouched))
        await array.stop()
        assert (await wait).row.state == "stopped"
        assert await story == []
        assert {"submitted", "started", "cleared"} <= {*await kinds(array)}

    asyncio.run(main())


def test_a_hundred_wait_at_once(home: Path, folder: Path) -> None:
    async def main() -> None:
        client = AsyncClient(home)
        jobs = await asyncio.gather(*(client.run(waits_for(folder / "go")) for _ in range(5)))
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(jobs[number % 5].wait(DEADLINE_S)) for number in range(100)]
            async for line in jobs[0].logs(follow=True):
                if line.text == "waits":
                    assert not any(wait.done() for wait in waits)
                    (folder / "go").touch()
        assert [wait.result().row.id for wait in waits] == [job.id for job in jobs] * 20
        assert {wait.result().row.state for wait in waits} == {"succeeded"}

    asyncio.run(main())


def test_a_wait_may_be_cancelled_or_run_out_of_time(home: Path, folder: Path) -> None:
    async def main() -> None:
        job = await AsyncClient(home).run(waits_for(folder / "go"))
        with pytest.raises(TimedOut):
            await job.wait(0.2)
        waiter = asyncio.create_task(job.wait())
        async for line in job.logs(follow=True):
            assert line.text == "waits"
            break
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await job.wait()
        (folder / "go").touch()
        assert (await job.wait(DEADLINE_S)).row.state == "succeeded"

    asyncio.run(main())


def test_one_client_may_serve_several_loops(home: Path, folder: Path) -> None:
    client = AsyncClient(home)

    async def main() -> str:
        return str((await (await client.run("true")).wait(DEADLINE_S)).row.state)

    assert [asyncio.run(main()), asyncio.run(main())] == ["succeeded", "succeeded"]


def test_the_blocking_client_works_beside_a_running_loop(home: Path, folder: Path) -> None:
    """As in a notebook."""

    async def main() -> list[str]:
        job = Client(home).run("echo here")
        lines = [line.text for line in job.logs(follow=True)]
        return [*lines, job.wait(DEADLINE_S).row.state]

    assert asyncio.run(main()) == ["here", "succeeded"]


@pytest.mark.long
def test_followers_outlive_a_restart_and_get_the_end(own_home: Path, folder: Path) -> None:
    server = LocalClient(Home(own_home))

    async def main() -> None:
        job = await AsyncClient(own_home).run(waits_for(folder / "go"))
        lines = job.logs(follow=True)
        assert (await anext(lines)).text == "waits"
        await asyncio.to_thread(server.connect().restart)
        await asyncio.to_thread(server.shutdown)
        with pytest.raises(Unreachable):
            await anext(lines)
        (folder / "go").touch()
        assert (await job.wait(DEADLINE_S)).row.state == "succeeded"

    asyncio.run(main())
