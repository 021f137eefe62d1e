"""Real servers: how they start, refuse to start and stop, and what clients see of it."""

import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from ganger.client import Client, ClientError
from ganger.launcher.build_archive import build
from ganger.server.__main__ import CANNOT, main
from tests.rest.serving import ServerHome, frames, streaming
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    """Yield a server for tests that leave it unchanged."""
    place = ServerHome(tmp_path_factory.mktemp("served"))
    place.client.connect()
    yield place
    place.close()


START = "import sys; from pathlib import Path; from ganger.settings import Home; from ganger.client import Client; \
print(Client(Home(Path(sys.argv[1]))).connect().server()['pid'])"


def test_clients_that_start_at_once_get_one_server(place: ServerHome) -> None:
    clients = [
        subprocess.Popen([sys.executable, "-c", START, str(place.home.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    pids = {client.communicate()[0] for client in clients}
    assert [client.returncode for client in clients] == [0] * 6
    assert [int(pid) for pid in pids] == place.servers() == [place.pid]


@pytest.mark.long
def test_threads_that_start_at_once_do_not_keep_the_server_from_its_lock(place: ServerHome) -> None:
    with ThreadPoolExecutor(80) as threads:
        pids = list(threads.map(lambda _: Client(place.home).connect().server()["pid"], range(80)))
    assert set(pids) == {place.pid}


def test_files_and_sockets_are_for_their_owner_only(served: ServerHome) -> None:
    for path in served.home.path.iterdir():
        mode = path.lstat().st_mode
        assert not stat.S_ISSOCK(mode) or stat.S_IMODE(mode) == 0o600, path
    assert stat.S_IMODE(served.home.path.stat().st_mode) == 0o700
    for path in (served.home.server_log, served.home.server_lock, served.home.server_file, served.home.database):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    announced = json.loads(served.home.server_file.read_text())
    process = psutil.Process(announced["pid"])
    ticks = round((process.create_time() - psutil.boot_time()) * os.sysconf("SC_CLK_TCK"))
    assert abs(announced["start_ticks"] - ticks) <= os.sysconf("SC_CLK_TCK")
    assert set(announced) == {"pid", "start_ticks", "socket", "launcher_socket", "version", "url", "fingerprint"}


@pytest.mark.long
def test_a_second_server_names_the_first(served: ServerHome) -> None:
    second = served.serve()
    assert second.returncode == 5
    assert f"pid {served.pid}" in second.stderr
    assert "next: ganger server status" in second.stderr
    assert served.client.server()["pid"] == served.pid


def test_a_corrupt_log_is_left_as_it_is(place: ServerHome) -> None:
    place.home.database.write_bytes(b"this is no database" * 1000)
    with pytest.raises(ClientError) as refused:
        place.client.connect()
    assert refused.value.exit_code == 5
    assert str(place.home.database) in refused.value.detail
    assert "mv " in refused.value.next
    assert place.home.database.read_bytes() == b"this is no database" * 1000
    assert place.servers() == []


@pytest.mark.long
def test_a_state_directory_of_an_older_version_is_left_as_it_is(place: ServerHome) -> None:
    place.client.connect()
    place.client.shutdown()
    with sqlite3.connect(place.home.database, isolation_level=None) as database:
        database.execute("PRAGMA user_version = 15")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    old_log = place.home.database.read_bytes()
    with pytest.raises(ClientError) as refused:
        place.client.connect()
    assert refused.value.exit_code == 5
    assert f"{place.home.database} was written by an older version of ganger: it has format 15" in refused.value.detail
    _, _, command = refused.value.next.partition("keeping the old log: ")
    assert command.endswith(" && ganger server start")
    assert place.home.database.read_bytes() == old_log
    assert place.servers() == []
    subprocess.run(["sh", "-c", command.removesuffix(" && ganger server start")], check=True)
    place.client.connect()
    assert Path(f"{place.home.database}.format-15").read_bytes() == old_log


@pytest.mark.long
def test_a_damaged_page_is_found_and_left_as_it_is(place: ServerHome) -> None:
    place.client.connect()
    place.client.wait(place.submit(["true"]), 60)
    place.client.shutdown()
    with sqlite3.connect(place.home.database) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'event'").fetchone()[0]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    database.close()
    with place.home.database.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    damaged = place.home.database.read_bytes()
    with pytest.raises(ClientError) as refused:
        place.client.connect()
    assert str(place.home.database) in refused.value.detail
    assert place.home.database.read_bytes() == damaged


@pytest.mark.long
@pytest.mark.parametrize("name", ["server", "launcher"])
def test_a_socket_of_another_program_is_left_alone(place: ServerHome, name: str) -> None:
    path = place.home.socket(name)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        refused = place.serve()
        assert refused.returncode == 5
        assert f"{path} is in use by another program" in refused.stderr
    path.unlink()
    path.write_text("notes")
    refused = place.serve()
    assert refused.returncode == 5
    assert "is not a socket" in refused.stderr
    assert path.read_text() == "notes"


@pytest.mark.long
def test_a_socket_of_a_dead_server_is_replaced(place: ServerHome) -> None:
    place.client.connect()
    os.kill(place.pid, signal.SIGKILL)
    wait_until(lambda: not place.servers(), "it is dead")
    assert place.home.socket("server").exists()
    assert place.client.connect().server()["health"] == "ok"


@pytest.mark.long
def test_an_invalid_topology_is_reported_with_line_and_column(place: ServerHome) -> None:
    place.home.topology.write_text("nodes:\n  - {name: n1, gpsu: 4}\n")
    with pytest.raises(ClientError) as refused:
        place.client.connect()
    assert f"{place.home.topology}:2:" in refused.value.detail
    assert "gpsu" in refused.value.detail
    assert "gpus" in refused.value.next


def test_a_home_that_others_can_read_is_refused(
    place: ServerHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganger.server.server_log.set_up", lambda _: None)  # it is for the whole process
    place.home.path.chmod(0o755)
    assert main(["serve", "--home", str(place.home.path)]) == CANNOT
    assert "chmod 700" in capsys.readouterr().err
    place.home.path.chmod(0o700)


@pytest.mark.long
def test_a_state_directory_deeper_than_a_socket_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    place = ServerHome(deep)
    try:
        place.client.connect()
        assert place.client.wait(place.submit(["true"]), 60)["row"]["state"] == "succeeded"
        path = Path(json.loads(place.home.server_file.read_text())["socket"])
        assert path.parent.stat().st_mode & 0o077 == 0
    finally:
        place.close()


@pytest.mark.long
def test_a_server_started_by_a_job_starts_jobs(place: ServerHome, tmp_path: Path) -> None:
    """In a job ganger is found in the launcher's zipapp first, which contains only a part of it."""
    archives = tmp_path / "archives"
    archives.mkdir()
    inside = {**os.environ, "PYTHONPATH": str(build(archives)), "GANGER_TASK_DIR": str(archives)}
    subprocess.run([sys.executable, "-c", START, str(place.home.path)], env=inside, check=True)
    mark = f"GANGER_TASK_DIR={archives}".encode()
    assert mark not in Path(f"/proc/{place.pid}/environ").read_bytes()
    assert place.client.wait(place.submit(["true"]), 60)["row"]["state"] == "succeeded"


def test_a_job_knows_its_server(place: ServerHome) -> None:
    place.client.connect()
    name = place.submit(["sh", "-c", "echo $GANGER_HOME > told"])
    assert place.client.wait(name, 60)["row"]["state"] == "succeeded"
    assert (place.home.path / "told").read_text() == f"{place.home.path}\n"


def test_jobs_outlive_a_server_that_is_stopped_or_killed(place: ServerHome) -> None:
    place.client.connect()
    name = place.submit(["sh", "-c", "while [ ! -e over ]; do sleep 0.05; done"])
    place.until(name, "running")
    place.client.shutdown()
    assert place.servers() == []
    assert not place.home.server_file.exists()
    place.client.connect()
    os.kill(place.pid, signal.SIGKILL)
    wait_until(lambda: not place.servers(), "it is dead")
    place.client.connect()
    assert place.client.job(name)["row"]["state"] == "running"
    (place.home.path / "over").touch()
    job = place.client.wait(name, 60)
    assert (job["row"]["state"], job["row"]["generation"]) == ("succeeded", 1)


def test_a_signal_stops_the_server_cleanly(place: ServerHome) -> None:
    place.client.connect()
    pid = place.pid
    with streaming(place, "/stream") as lines:
        assert next(lines) == b": connected"
        os.kill(pid, signal.SIGTERM)
        assert list(lines) == [b""]
    wait_until(lambda: not place.servers(), "it has ended")
    assert not place.home.socket("server").exists()
    assert "the server shuts down; jobs keep running" in place.home.server_log.read_text()


@pytest.mark.long
def test_a_restart_keeps_the_pid_the_lock_and_the_jobs(place: ServerHome) -> None:
    place.client.connect()
    pid = place.pid
    name = place.submit(["sh", "-c", "echo before; while [ ! -e over ]; do sleep 0.05; done; echo after"])
    place.until(name, "running")
    with ThreadPoolExecutor() as pool:
        lines = pool.submit(lambda: [line["text"] for line in place.client.logs(name, follow=True)])
        ended = pool.submit(place.client.wait, name, 60)
        wait_until(lambda: list(place.client.logs(name)), "it has written")
        server = place.client.restart()
        (place.home.path / "over").touch()
        assert (server["pid"], place.servers()) == (pid, [pid])
        assert ended.result()["row"]["state"] == "succeeded"
        assert lines.result() == ["before", "after"]


@pytest.mark.long
def test_an_older_server_is_replaced_by_one_of_the_clients_version(place: ServerHome) -> None:
    place.client.connect()
    started = place.client.server()["started_ms"]
    record = json.loads(place.home.server_file.read_text())
    place.home.server_file.write_text(json.dumps(record | {"version": "99.0.0"}))
    assert Client(place.home).connect().server()["started_ms"] == started
    place.home.server_file.write_text(json.dumps(record | {"version": "0.0.9"}))
    assert Client(place.home).connect().server()["started_ms"] > started


def test_the_server_ends_when_its_core_fails(place: ServerHome) -> None:
    place.client.connect()
    pid = place.pid
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not place.servers(), "it has ended")
    with place.home.server_log.open("ab") as log:
        broken = (
            "import ganger.engine.loop as l; l.Loop.run = lambda self: 1 / 0; import ganger.server.__main__ as m, sys; \
sys.exit(m.main(['serve', '--home', sys.argv[1]]))"
        )
        done = subprocess.run([sys.executable, "-c", broken, str(place.home.path)], stderr=log, timeout=60, check=False)
    assert done.returncode == 5
    output = place.home.server_log.read_text()
    assert "ZeroDivisionError" in output
    assert "the scheduler core failed" in output


def test_a_client_that_must_not_start_a_server_reports_that_none_runs(place: ServerHome) -> None:
    with pytest.raises(ClientError) as refused:
        place.client.connect(start=False)
    assert (refused.value.code, refused.value.exit_code, refused.value.next) == (
        "unreachable",
        5,
        "ganger server start",
    )
    assert place.servers() == []


@pytest.mark.long
def test_a_server_without_its_socket_is_named_and_can_be_stopped(place: ServerHome) -> None:
    place.client.connect()
    pid = place.pid
    name = place.submit(["sleep", "300"])
    place.until(name, "running")
    os.kill(pid, signal.SIGSTOP)  # otherwise it would restore the socket
    place.home.socket("server").unlink()
    for start in (True, False):
        with pytest.raises(ClientError, match=f"the server with pid {pid} runs, but has lost its socket ") as caught:
            Client(place.home).connect(start=start)
        assert (caught.value.next, caught.value.exit_code) == ("ganger server stop", 5)
    assert place.ganger("server", "status").returncode == 5
    stopped = place.ganger("server", "stop")
    assert (stopped.returncode, stopped.stdout) == (
        0,
        f"stopped the server with a signal to pid {pid}; jobs keep running\n",
    )
    assert "has lost its socket" in stopped.stderr
    assert place.servers() == []
    assert place.client.connect().server()["pid"] != pid
    assert place.client.job(name)["row"]["state"] == "running"


def test_a_stopping_server_does_not_restore_its_socket(place: ServerHome) -> None:
    pid = place.client.connect().server()["pid"]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(place.home.socket("server")))
        # A request under way keeps the end waiting for longer than there is from one look at the socket to the next.
        link.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        os.kill(pid, signal.SIGTERM)
        place.home.socket("server").unlink()
        wait_until(lambda: not place.servers(), "it has ended")
    with pytest.raises(ClientError, match="no server runs"):
        place.client.connect(start=False)


def test_only_the_announced_process_is_killed(place: ServerHome) -> None:
    place.client.connect()
    record = json.loads(place.home.server_file.read_text())
    for wrong in ({"start_ticks": record["start_ticks"] + 1}, {"pid": os.getpid()}, {"pid": None}):
        place.home.server_file.write_text(json.dumps(record | wrong))
        with pytest.raises(ClientError, match="does not tell which process it is"):
            place.client.end()
    place.home.server_file.write_text(json.dumps(record))
    assert place.servers() == [record["pid"]]


@pytest.mark.long
def test_a_suspended_server_is_distinguished_from_a_missing_one(
    place: ServerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.client.connect()
    pid = place.pid
    name = place.submit(["sleep", "300"])
    place.until(name, "running")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(place.client.wait, name, 60)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is suspended")
        monkeypatch.setattr("ganger.client.client.SIGN_OF_LIFE_S", 0.2)
        with pytest.raises(ClientError, match=f"the server with pid {pid} has not answered for 0.2 s: it is") as caught:
            Client(place.home).connect()
        assert (caught.value.next, caught.value.exit_code) == (f"kill -CONT {pid}", 5)
        monkeypatch.undo()
        os.kill(pid, signal.SIGCONT)
        place.client.connect().stop(name)
        assert waiting.result()["row"]["state"] == "stopped"
    os.kill(pid, signal.SIGSTOP)
    assert place.client.end() == pid
    assert place.servers() == []


def test_another_users_socket_is_not_used(place: ServerHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(place.home.socket("server")))
        theirs.listen()
        theirs.settimeout(10)
        monkeypatch.setattr("ganger.client.local.http.os.getuid", lambda: os.geteuid() + 1)
        with pytest.raises(ClientError, match="another user's program listens at") as caught:
            place.client.submit(place.request(["true"], env={"TOKEN": "secret"}))
        assert caught.value.exit_code == 5
        with theirs.accept()[0] as link:
            assert link.recv(1) == b""


def test_errors_of_the_client_have_the_documented_exit_codes(served: ServerHome) -> None:
    name = served.submit(["sleep", "60"])
    for call, code, exit_code in (
        (lambda: served.client.job("nothing"), "no_such_job", 3),
        (lambda: served.client.delete(name), "still_live", 4),
        (lambda: served.submit(["sleep", "60"], nodse=1), "bad_spec", 2),
    ):
        with pytest.raises(ClientError) as refused:
            call()
        assert (refused.value.code, refused.value.exit_code) == (code, exit_code)
        assert refused.value.next
    served.client.stop(name)


def test_events_stream_and_resume_without_gap_or_repeat(served: ServerHome) -> None:
    start = served.client.server()["seq"]
    first = served.submit(["true"])
    with streaming(served, f"/stream?after={start}") as lines:
        before = list(islice(frames(lines), 3))
    second = served.submit(["true"])
    served.client.wait(second, 60)
    last = served.client.server()["seq"]
    with streaming(served, "/stream?after=0", f"Last-Event-ID: {before[-1][0]}\r\n") as lines:
        after = list(islice(frames(lines), last - before[-1][0]))
    seqs = [seq for seq, _ in before + after]
    assert seqs == list(range(start + 1, last + 1)) == [event["seq"] for _, event in before + after]
    assert {first, second} <= {event["job"] for _, event in before + after}
    assert [event for _, event in before + after] == served.client.events(after=start)["items"]


def test_many_idle_subscribers_all_get_the_next_event(served: ServerHome) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(streaming(served, "/stream")) for _ in range(100)]
        assert {next(lines) for lines in streams} == {b": connected"}
        seq = served.client.server()["seq"]
        served.client.cordon("n1", cordoned=True)
        later = [
            next(seq_of for seq_of, _ in frames(lines) if seq_of > seq) for lines in streams
        ]  # a job before may still end
        assert later == [seq + 1] * 100
    served.client.cordon("n1", cordoned=False)


def test_a_follower_that_disconnects_is_released(served: ServerHome) -> None:
    name = served.submit(["sh", "-c", "echo one; sleep 300"])
    threads = psutil.Process(served.pid).num_threads
    with streaming(served, f"/jobs/{name}/logs?follow=true") as lines:
        assert json.loads(next(lines))["text"] == "one"
        during = threads()
    wait_until(lambda: threads() < during, "its thread has ended")


def test_a_follower_waits_for_a_future_attempt(served: ServerHome) -> None:
    fails_once = 'echo "attempt $GANGER_ATTEMPT"; while [ ! -e "fail-$1" ]; do sleep 0.05; done; kill -9 $$'
    name = served.submit(["sh", "-c", fails_once, "sh", "1"], retry={"max": 1})
    served.until(name, "running")
    with ThreadPoolExecutor() as pool:
        second, third = (
            pool.submit(lambda n=n: [line["text"] for line in served.client.logs(name, follow=True, attempt=n)])
            for n in (2, 3)
        )
        with pytest.raises(ClientError, match=f"{name} has had one attempt, and no attempt 2") as refused:
            list(served.client.logs(name, attempt=2))
        assert (refused.value.exit_code, refused.value.next) == (3, f"ganger get {name}")
        (served.home.path / "fail-1").touch()
        assert second.result() == ["attempt 2"]
        with pytest.raises(ClientError, match=f"{name} has had attempts 1 to 2, and no attempt 3"):
            third.result()


def test_wait_ends_with_the_job_or_the_timeout(served: ServerHome) -> None:
    name = served.submit(["sleep", "300"])
    assert served.client.wait(name, 0.2) is None
    served.client.stop(name)
    assert served.client.wait(name, 60)["row"]["state"] == "stopped"
    assert served.client.wait(name)["row"]["state"] == "stopped"


@pytest.mark.long
def test_the_log_replays_and_the_doctor_finds_nothing_wrong(place: ServerHome) -> None:
    place.client.connect()
    for _ in range(3):
        place.client.wait(place.submit(["true"], nodes=2), 60)

    def subcommand(name: str, seed: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "ganger.server", name, "--home", str(place.home.path)]
        return subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": seed}, check=False
        )

    replayed = subcommand("replay", "7")
    assert (replayed.returncode, "all decisions are the same" in replayed.stdout) == (0, True), replayed
    checks = {check["name"]: check for check in json.loads(subcommand("doctor", "0").stdout)}
    assert {name for name, check in checks.items() if not check["ok"]} <= {"disk", "git"}
    assert {"python", "home", "disk", "socket", "log", "clock", "server", "devices", "git"} <= set(checks)
    place.client.shutdown()
    for path in place.home.path.glob("ganger.db*"):
        path.write_bytes(b"no database" * 100)
    checks = {check["name"]: check for check in json.loads(subcommand("doctor", "0").stdout)}
    assert not checks["log"]["ok"]
    assert "mv " in checks["log"]["next"]
    assert subcommand("replay", "0").returncode == 5


@pytest.mark.long
def test_a_replay_for_programs(place: ServerHome) -> None:
    place.client.connect()
    name = place.submit(["true"])
    place.client.wait(name, 60)
    place.client.shutdown()

    def replayed() -> tuple[int, dict[str, Any]]:
        done = place.ganger("replay", "-o", "json")
        return done.returncode, json.loads(done.stdout)

    with closing(sqlite3.connect(place.home.database)) as database, database:
        last = database.execute("SELECT max(seq) FROM event").fetchone()[0]
        code, same = replayed()
        assert (code, same) == (0, {"first": 1, "last": last, "cycles": same["cycles"], "difference": None})
        decided = "kind = 'decided' AND CAST(data AS TEXT) LIKE '%\"start\"%'"
        seq, data = database.execute(f"SELECT seq, data FROM event WHERE {decided}").fetchone()
        event = json.loads(data)
        logged = event["plan"]["decisions"]
        event["plan"]["decisions"] = []
        database.execute("UPDATE event SET data = ? WHERE seq = ?", (json.dumps(event).encode(), seq))
        database.commit()
        code, other = replayed()
        assert (code, set(other), other["last"]) == (1, set(same), last)
        assert other["difference"] == {"seq": seq, "logged": [], "planned": logged}
