"""Launchers in pods: over TCP and TLS, with plans from the server, which cannot read their disks."""

import json
import socket
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from ganger.launcher.protocol.messages import VERSION
from ganger.launcher_server import message_events
from ganger.launcher_server.connection import SEND_LIMIT_BYTES
from tests.launcher.harness import GANG, SH, UNTIL_GO
from tests.launcher.remote_launchers import HOST, Authority, ListenFixture, Pod, StartFixture
from tests.waiting import DEADLINE_S, wait_until

# -- a gang ----------------------------------------------------------------------------------------------------------


def test_gang_of_two_pods_gets_its_plans_and_reports_all_ends(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pods = [starts(controller, node, GANGER_POD_IP=f"10.0.0.{node[1]}") for node in ("n1", "n2")]
    controller.wait_for_hello(2)
    assert {(hello.node, hello.address, hello.generation) for hello in controller.hellos} == {
        ("n1", "10.0.0.1", 1),
        ("n2", "10.0.0.2", 1),
    }
    plans = [
        pod.plan([*SH, "echo rank $GANGER_RANK; cat $GANGER_TASK_DIR/peers"], ranks, files={"peers": "n1 n2"})
        for pod, ranks in zip(pods, ((0, 1), (2, 3)), strict=True)
    ]
    controller.run(*plans)
    for pod in pods:
        controller.wait("cleared", pod.node)
        assert controller.kinds(pod.node) == ["started", "done", "finished", "cleared"]
        assert stat.S_IMODE((pod.task / "plan-1.json").stat().st_mode) == 0o600
    assert "rank 3" in (pods[1].task / "1" / "rank-3.log").read_text()
    assert "n1 n2" in (pods[1].task / "1" / "rank-3.log").read_text()
    assert message_events.is_done([controller.records.task(GANG, pod.node) for pod in pods], 1)
    for pod in pods:
        controller.send(pod.node, "leave")
        assert pod.ended() == 0


def test_job_is_not_done_before_all_counting_ranks_have_ended(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in ("n1", "n2")]
    controller.run(pods[0].plan([*SH, "exit 0"], (0,)), pods[1].plan([*SH, UNTIL_GO], (1,)))
    controller.wait("exit_record", "n1", rank=0)
    controller.wait("started", "n2")
    tasks = [controller.records.task(GANG, pod.node) for pod in pods]
    assert not message_events.is_done(tasks, 1)
    (pods[1].directory / "work" / "go").touch()
    controller.wait("exit_record", "n2", rank=1)
    assert message_events.is_done(tasks, 1)


def test_repeated_plan_changes_nothing(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    plan = pod.plan([*SH, f"echo once >> ran; {UNTIL_GO}"])
    for _ in range(3):
        controller.run(plan)
    controller.wait("started", "n1")
    controller.run(plan)
    (pod.directory / "work" / "go").touch()
    controller.wait("cleared", "n1")
    controller.run(plan)
    controller.wait("cleared", "n1", count=2)  # it is over, and never runs again
    assert (pod.directory / "work" / "ran").read_text() == "once\n"


def test_plan_of_512_ranks(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    plan = pod.plan([*SH, "exit 0"], range(512), files={"hosts": "n" * (4 << 20)}, setup="exit 3")
    controller.run(plan)
    assert controller.wait("start_failed", "n1")["exit_code"] == 3
    assert len(json.loads((pod.task / "plan-1.json").read_text())["ranks"]) == 512
    assert len(controller.records.task(GANG, "n1").planned(1) or ()) == 512
    assert (pod.task / "1" / "hosts").stat().st_size == 4 << 20


@pytest.mark.long
def test_ends_of_512_ranks_of_one_pod_are_reported(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan(["true"], range(512)))
    controller.wait("finished", "n1")
    task = controller.records.task(GANG, "n1")
    assert sorted(record["rank"] for record in task.exits(1)) == list(range(512))
    assert message_events.is_done([task], 1)


def test_message_that_is_too_long_is_not_sent(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    starts(controller)
    controller.wait_for_hello()
    with pytest.raises(ValueError, match="a launcher takes at most"):
        controller.send("n1", "run", generation=1, plan="x" * SEND_LIMIT_BYTES)


@pytest.mark.parametrize("plan", [{}, {"v": 1, "generation": 1}, [], "text"])
def test_invalid_plan_fails_the_start(listens: ListenFixture, starts: StartFixture, plan: object) -> None:
    controller = listens()
    pod = starts(controller)
    controller.wait_for_hello()
    controller.send("n1", "run", generation=1, plan=plan)
    assert "is invalid" in controller.wait("start_failed", "n1")["detail"]
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 66


# -- the server away and back ----------------------------------------------------------------------------------------


def test_server_away_and_back(listens: ListenFixture, starts: StartFixture) -> None:
    first = listens()
    pod = starts(first)
    plan = pod.plan([*SH, f"echo once >> ran; {UNTIL_GO}"], (0, 1))
    first.run(plan)
    first.wait("started", "n1")
    first.close()
    (pod.directory / "work" / "go").touch()
    wait_until((pod.task / "1" / "cleared").exists, "the ranks end without a server")
    second = listens(port=first.port)
    second.wait("cleared", "n1")
    kinds = [kind for kind in second.kinds("n1") if kind != "started"]  # which may have been acknowledged in time
    assert kinds[:3] == ["done", "finished", "cleared"]
    second.run(plan)
    for rank in (0, 1):
        assert second.wait("exit_record", "n1", rank=rank)["exit_code"] == 0
    assert message_events.is_done([second.records.task(GANG, "n1")], 1)
    assert (pod.directory / "work" / "ran").read_text() == "once\n" * 2
    second.send("n1", "leave")
    assert pod.ended() == 0


def test_a_launcher_goes_on_under_a_controller_of_a_later_version(listens: ListenFixture, starts: StartFixture) -> None:
    """An upgrade replaces the controller, not the pods: the launcher ignores what it does not know of its messages."""
    older = listens()
    pod = starts(older)
    plan = pod.plan([*SH, f"echo once >> ran; {UNTIL_GO}"])
    older.run(plan)
    older.wait("started", "n1")
    older.close()
    later = listens(port=older.port)
    later.wait_for_hello()
    later.send("n1", "rebalance", generation=1, later="a message of that version")
    later.send("n1", "run", generation=1, plan=asdict(plan) | {"later": "a field"}, later="another")
    later.send("n1", "run", v=VERSION + 1, generation=1, plan={})
    (pod.directory / "work" / "go").touch()
    later.wait("cleared", "n1")
    later.records.plan(plan)
    assert later.wait("exit_record", "n1", rank=0)["exit_code"] == 0
    assert (pod.directory / "work" / "ran").read_text() == "once\n", "it ran on, and did not start again"
    wait_until(lambda: f"version {VERSION + 1}" in pod.own_log(), "it says that it does not know a version")
    later.send("n1", "leave")
    assert pod.ended() == 0


def test_waits_for_a_server_that_starts_later(listens: ListenFixture, starts: StartFixture) -> None:
    absent = listens()
    absent.close()
    pod = starts(absent)
    wait_until(lambda: "cannot reach the server" in pod.own_log(), "it logs that there is no server")
    controller = listens(port=absent.port)
    controller.run(pod.plan(["true"]))
    controller.wait("finished", "n1")


def test_server_that_restarts_learns_the_ends_of_ranks_while_others_run(
    listens: ListenFixture, starts: StartFixture
) -> None:
    first = listens()
    pod = starts(first)
    plan = pod.plan([*SH, f"[ $GANGER_RANK = 0 ] || {UNTIL_GO}"], (0, 1))
    first.run(plan)
    first.wait("exit_record", "n1", rank=0)
    first.close()
    second = listens(port=first.port)
    assert second.wait("exit_record", "n1", rank=0)["exit_code"] == 0
    assert second.wait_for_hello().generations == (1,)


def test_server_that_moved_is_found_through_the_file(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path
) -> None:
    address, first = tmp_path / "address", listens()
    address.write_text(f"{HOST}:{first.port}\n")
    pod = starts(first, server=f"file:{address}")
    first.run(pod.plan([*SH, UNTIL_GO]))
    first.wait("started", "n1")
    first.close()
    other_authority = Authority(tmp_path / "its")
    second = listens(context=other_authority.context())
    second.tokens["n1"] = "another"
    pod.ca.write_bytes(other_authority.ca.read_bytes())
    pod.token.write_text("another")
    address.write_text(f"{HOST}:{second.port}\n")
    assert second.wait_for_hello().generations == (1,)
    (pod.directory / "work" / "go").touch()
    second.wait("finished", "n1")


# -- authentication --------------------------------------------------------------------------------------------------


def test_wrong_token_is_refused(listens: ListenFixture, starts: StartFixture, caplog: pytest.LogCaptureFixture) -> None:
    controller = listens()
    controller.tokens["n1"] = "another"
    pod = starts(controller)
    controller.run(pod.plan(["true"]))
    wait_until(lambda: "wrong token" in caplog.text, "it is refused")
    assert controller.hellos == []
    assert not (pod.task / "plan-1.json").exists()
    assert "another" not in caplog.text
    pod.token.write_text("another\n")
    controller.wait("finished", "n1")


def test_certificate_of_another_authority_is_refused(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path
) -> None:
    controller = listens()
    pod = starts(controller, ca=Authority(tmp_path / "other").ca)
    controller.run(pod.plan(["true"]))
    wait_until(lambda: "certificate verify failed" in pod.own_log(), "it logs why it does not connect")
    assert controller.hellos == []
    assert pod.own_log().count("certificate verify failed") == 1


def test_replaced_certificate_is_accepted(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path, authority: Authority
) -> None:
    controller = listens()
    pod = starts(controller, ca=Authority(tmp_path / "other").ca)
    controller.run(pod.plan(["true"]))
    wait_until(lambda: "certificate verify failed" in pod.own_log(), "it is not believed")
    pod.ca.write_bytes(authority.ca.read_bytes())
    controller.wait("finished", "n1")


def test_certificate_of_another_host_is_refused(
    listens: ListenFixture, starts: StartFixture, authority: Authority
) -> None:
    controller = listens(context=authority.context("127.0.0.2"))
    pod = starts(controller)
    wait_until(lambda: "IP address mismatch" in pod.own_log(), "it logs why it does not connect")
    assert controller.hellos == []


def test_plain_text_is_dropped_by_the_listener(listens: ListenFixture) -> None:
    controller = listens()
    with socket.create_connection((HOST, controller.port), DEADLINE_S) as plain:
        plain.sendall(b'{"v": 2, "type": "hello"}\n')
        answer = b"".join(iter(lambda: _received(plain), b""))
    assert b"welcome" not in answer
    assert controller.hellos == []


def test_launcher_that_expects_tls_sends_nothing_to_a_plain_server(
    listens: ListenFixture, starts: StartFixture
) -> None:
    controller = listens(context=None)
    pod = starts(controller)
    wait_until(lambda: "cannot reach the server" in pod.own_log(), "the handshake fails")
    assert controller.hellos == []


def test_plain_text_within_one_machine(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens(context=None)
    pod = starts(controller, ca=None)
    controller.run(pod.plan(["true"]))
    controller.wait("finished", "n1")


def test_plain_text_is_refused_on_a_public_address(listens: ListenFixture) -> None:
    controller = listens()
    with pytest.raises(ValueError, match="configure a certificate"):
        controller.do(controller.listener.open("0.0.0.0", 0, None))


@pytest.mark.parametrize(
    ("server", "variables", "message"),
    [
        ("tcp:10.0.0.1:7000", {}, "set GANGER_CA_FILE to"),
        ("tcp:localhost:7000", {}, "set GANGER_CA_FILE to"),
        ("tcp:127.0.0.1", {}, "must be tcp:HOST:PORT"),
        ("tcp:127.0.0.1:0", {}, "must be tcp:HOST:PORT"),
        ("tcp:127.0.0.1:7000", {"GANGER_CA_FILE": "/nowhere"}, "cannot use GANGER_CA_FILE /nowhere"),
        ("file:/nowhere", {}, "cannot read the address of the server"),
        ("file:/dev/null", {}, "must be tcp:HOST:PORT"),
        ("tcp:127.0.0.1:7000", {"GANGER_NODE": ""}, "GANGER_GANG and GANGER_NODE must be set"),
    ],
)
def test_invalid_server_address_is_refused(
    tmp_path: Path, archive: Path, server: str, variables: dict[str, str], message: str
) -> None:
    pod = Pod(tmp_path / "pod", archive)
    pod.start(server, **variables)
    assert pod.ended() == 64
    assert message in pod.stderr.read_text()


def test_peer_that_sends_too_much_before_the_token_is_dropped(listens: ListenFixture) -> None:
    controller = listens(context=None)
    with socket.create_connection((HOST, controller.port), DEADLINE_S) as peer:
        peer.sendall(b"x" * (65 << 10))
        assert b"".join(iter(lambda: _received(peer), b"")) == b""


# -- generations -----------------------------------------------------------------------------------------------------


def test_stale_generation_is_not_run(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller, generation=2)
    controller.run(pod.plan([*SH, UNTIL_GO], generation=2))
    controller.wait("started", "n1", generation=2)
    controller.run(pod.plan([*SH, "touch stale"], generation=1))
    controller.wait("cleared", "n1", generation=1)
    assert not (pod.directory / "work" / "stale").exists()
    assert not (pod.task / "plan-1.json").exists()
    (pod.directory / "work" / "go").touch()
    controller.wait("finished", "n1", generation=2)


def test_launcher_of_an_older_generation_does_not_replace_the_newer_one(
    listens: ListenFixture, starts: StartFixture
) -> None:
    controller = listens()
    starts(controller, generation=2)
    controller.wait_for_hello()
    newer = controller.listener.connection(GANG, "n1")
    older = starts(controller, generation=1)
    assert controller.wait_for_hello(2).generation == 1
    assert controller.listener.connection(GANG, "n1") is newer
    older.end()
    controller.stop("n1", 7)
    controller.wait("cleared", "n1", generation=7)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""
