"""Bad logs, documents and clusters: an error with its place, and no figure of a part of the input."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.event_log import EventLog
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.event import NodesListed, QueueSet
from ganger.model.queue import Queue
from ganger.model.units import DAY_MS, HOUR_MS
from ganger.simulation.from_log.recorded_days import read_days
from tests.cli.conftest import Shell
from tests.engine.scenes import nodes, played, submit

NODES = "name,gpus,gpu_type\nn1,8,h100\n"


def written(path: Path, jobs: int = 3) -> Path:
    """Write the log of a server that ended."""
    acts = {f"job-{at}": Behaviour(startup_ms=0, stagger_ms=0, steps=60) for at in range(jobs)}
    world, log = VirtualCluster(nodes(1, gpus=8), acts), EventLog(path)
    for at in range(jobs):
        world.at(at * 1_000, submit(f"job-{at}", 1, 8))
    played(world, log, "fifo", HOUR_MS)
    log.close()
    return path


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE event (seq INTEGER)")
        other.commit()


def of_a_newer_version(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as log:
        log.execute("PRAGMA user_version = 9999")


def truncated(path: Path) -> None:
    content = written(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def with_a_broken_event(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as log:
        log.execute("UPDATE event SET data = '{}' WHERE seq = 4")
        log.commit()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b""), "is empty: no server has written there"),
        (lambda path: path.write_text("name,submitted_ms\n" * 99), "file is not a database"),
        (of_another_program, "the file is a database of another program"),
        (of_a_newer_version, "it has format 9999, this version reads"),
        (truncated, "cannot be read as an event log"),
        (with_a_broken_event, "was set aside: it cannot be read"),
        (lambda path: written(path, 0), "has no job that was submitted"),
    ],
    ids=["absent", "directory", "empty", "text", "other", "newer", "truncated", "damaged", "no-jobs"],
)
def test_a_file_that_is_no_log_is_refused(make, what: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "ganger.db"
    make(path)
    with pytest.raises(RequestError) as refused:
        read_days(path)
    assert str(path) in refused.value.detail
    assert what in refused.value.detail
    assert refused.value.next


def test_reading_writes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "ganger.db")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.name != "ganger.db-reserve"}
    read_days(path)
    assert {e.name: e.read_bytes() for e in tmp_path.iterdir() if e.name != "ganger.db-reserve"} == before


def test_a_log_in_use_is_read_and_goes_on(tmp_path: Path) -> None:
    world, log = VirtualCluster(nodes(1, gpus=8)), EventLog(tmp_path / "ganger.db")
    world.at(0, submit("job-0", 1, 8))
    world.at(HOUR_MS, submit("job-1", 1, 8))
    loop = played(world, log, "fifo", HOUR_MS // 2)
    assert [*read_days(tmp_path / "ganger.db").histories] == ["job-0"]
    world.run(loop, 2 * HOUR_MS)
    assert [*read_days(tmp_path / "ganger.db").histories] == ["job-0", "job-1"]


# -- as it is typed ----------------------------------------------------------------------------------------------------


def test_a_log_under_a_document_and_on_other_nodes(shell: Shell, tmp_path: Path) -> None:
    log, document, cluster = written(tmp_path / "copy.db"), tmp_path / "new.yaml", tmp_path / "nodes.csv"
    document.write_text("order: sjf\ngpu_shares: {score: best-fit}\n")
    cluster.write_text(NODES + "n2,8,h100\n")
    said = shell("sim", "run", "--from-log", str(log), "--document", str(document))
    assert said.code == 0, said.err
    assert f"3 jobs of {log} on 1 node x 8 GPUs, policy {document}, " in said.out
    assert "2 changes from the one in force" in said.out
    assert "as recorded" in said.out
    result = json.loads(shell("sim", "run", "--from-log", str(log), "--cluster", str(cluster), "-o", "json").out)
    assert (result["nodes"], result["gpus"], result["gpus_in_all"]) == (2, 8, 16)
    # One after the other they end at 60, 120 and 180 s; on two nodes at 60, 61 and 120 s.
    assert result["recorded"]["scorecard"]["jct_ms"]["mean"] == (60_000 + 119_000 + 178_000) / 3
    assert result["scorecard"]["jct_ms"]["mean"] == (60_000 + 60_000 + 118_000) / 3


def test_nodes_that_came_and_went_are_said(shell: Shell, tmp_path: Path) -> None:
    """As when a server is started again with other virtual nodes."""
    world, log = VirtualCluster(nodes(2, gpus=8)), EventLog(tmp_path / "copy.db")
    world.at(0, submit("job-0", 1, 8))
    loop = played(world, log, "fifo", HOUR_MS)
    loop.post(NodesListed(nodes=(Node(name="other", gpus=8, gpu_type="h100"),)))
    world.run(loop, HOUR_MS)
    log.close()
    said = shell("sim", "run", "--from-log", str(tmp_path / "copy.db")).out
    assert "on 3 nodes x 8 GPUs (at most 2 at a time), policy in force" in said
    assert " on 5 nodes x 8 GPUs, " in shell("sim", "run", "--from-log", str(tmp_path / "copy.db"), "--nodes", "5").out


def test_since_takes_the_last_days(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "copy.db"
    world, opened = VirtualCluster(nodes(1, gpus=8)), EventLog(log)
    for day in (0, 2, 9):
        world.at(day * DAY_MS, submit(f"job-{day}", 1, 8))
    played(world, opened, "fifo", 10 * DAY_MS)
    opened.close()
    assert "1 job of " in shell("sim", "run", "--from-log", str(log), "--since", "5d").out
    asked = ("sim", "compare", "--from-log", str(log), "--policies", "sjf", "-o", "json", "--since")
    comparison = json.loads(shell(*asked, "8d").out)
    assert [run["scorecard"]["jobs"] for run in comparison["runs"]] == [2, 2, 2]
    said = shell("sim", "run", "--from-log", str(log), "--since", "5s")
    assert (said.code, "submitted in its last 5.0s" in " ".join(said.err.split())) == (2, True)


def test_the_own_log_is_that_of_the_state_directory(shell: Shell, tmp_path: Path) -> None:
    absent = shell("sim", "run", "--from-log")
    assert (absent.code, f"{tmp_path}/home/ganger.db cannot be read: No such file" in absent.err) == (2, True)
    (tmp_path / "home").mkdir(mode=0o700)
    written(tmp_path / "home" / "ganger.db")
    assert "3 jobs of " in shell("sim", "run", "--from-log").out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("order: best\n", "best"),
        ("half_life: soon\n", "new.yaml:1:"),
        ("orders: fifo\n", "new.yaml:1:1"),
        ("queues: {lab: {nominal: {gpus: -1}}}\n", "new.yaml:1:"),
        ("order: [\n", "new.yaml:"),
        ("", "the file is empty"),
    ],
)
def test_a_document_with_a_fault_is_refused_with_its_place(shell: Shell, tmp_path: Path, text: str, what: str) -> None:
    log, document = written(tmp_path / "copy.db"), tmp_path / "new.yaml"
    document.write_text(text)
    said = shell("sim", "run", "--from-log", str(log), "--document", str(document))
    assert said.code == 2
    assert what in said.err
    assert "next: " in said.err


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (NODES + "n1,8,h100\n", 3, "n1 again"),
        (NODES + "n2,-1,h100\n", 3, "negative"),
        (NODES + "n2,8,\n", 3, "8 GPUs of type ''"),
        ("name,gpu_type\nn1,h100\n", 1, "gpus"),
        ("", "", "is empty"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,64000,1024,8,A10\na,64000,1024,8,A10\n", 3, "a again"),
    ],
)
def test_a_cluster_with_a_fault_is_refused_with_its_line(
    shell: Shell, tmp_path: Path, text: str, line: object, what: str
) -> None:
    log, cluster = written(tmp_path / "copy.db"), tmp_path / "nodes.csv"
    cluster.write_text(text)
    said = shell("sim", "run", "--from-log", str(log), "--cluster", str(cluster))
    assert said.code == 2
    assert f"nodes.csv:{line}" in said.err
    assert what in said.err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--nodes", "1"), "name a TRACE, or --from-log"),
        (("TRACE",), "add --nodes N or --cluster FILE"),
        (("TRACE", "--nodes", "1", "--cluster", "TRACE"), "--nodes and --cluster cannot be combined"),
        (("TRACE", "--cluster", "TRACE", "--gpus", "4"), "--gpus, --gpu-type and --cpus need --nodes"),
        (
            ("TRACE", "--nodes", "1", "--policy", "sjf", "--document", "TRACE"),
            "--policy and --document cannot be combined",
        ),
        (("TRACE", "--nodes", "1", "--from-log", "TRACE"), "name a TRACE, or --from-log"),
        (("TRACE", "--nodes", "1", "--since", "7d"), "--since needs --from-log"),
        (("--from-log", "--since", "lately"), "is not a duration"),
    ],
)
def test_contradicting_options_are_refused(shell: Shell, tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("name,submitted_ms,duration_ms,gpus\na,0,60000,8\n")
    said = shell("sim", "run", *(str(trace) if word == "TRACE" else word for word in words))
    assert said.code == 2
    assert what in said.err


def test_a_queue_that_a_document_lacks_is_named(shell: Shell, tmp_path: Path) -> None:
    log, document = tmp_path / "copy.db", tmp_path / "new.yaml"
    document.write_text("order: fifo\n")
    world, opened = VirtualCluster(nodes(1, gpus=8)), EventLog(log)
    world.at(0, QueueSet(queue=Queue(name="lab")))
    world.at(1_000, submit("job-0", 1, 8, queue="lab"))
    played(world, opened, "fifo", HOUR_MS)
    opened.close()
    assert "1 row kept, policy_changed" in shell("sim", "run", "--from-log", str(log)).out
    said = shell("sim", "run", "--from-log", str(log), "--document", str(document))
    assert said.code == 2
    assert "queues that the document does not have: lab (1)" in said.err
    assert "next: give the document the queue lab" in said.err
