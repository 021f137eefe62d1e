"""Ranks continue while the server is away, and no fact is lost."""

import json
from contextlib import suppress
from typing import Any

import pytest

from tests.launcher.harness import GANG, NODE, SH, TOKEN, UNTIL_GO, Server, Task


def test_hello_has_identity_and_generations(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "exec sleep 600"])
    hello = server.wait("hello")
    identity = json.loads((task.path / "launcher.json").read_text())
    assert hello == {
        "v": 2,
        "type": "hello",
        "token": TOKEN,
        "gang": GANG,
        "node": NODE,
        "pid": launcher.pid,
        "start_ticks": identity["start_ticks"],
        "generations": [1],
        "generation": 1,
        "address": None,
    }


def test_hello_lists_no_finished_generation(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    server.close()
    server.open()
    assert server.wait("hello", count=2)["generations"] == []


def test_nothing_is_sent_before_the_welcome(task: Task, server: Server) -> None:
    server.welcomes = False
    task.run([*SH, "exit 0"])
    task.wait_for("cleared")
    server.wait("hello")
    assert server.kinds() == []
    server.send("welcome")
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]


def test_unacknowledged_facts_are_sent_again(task: Task, server: Server) -> None:
    server.acknowledges = False
    task.run([*SH, UNTIL_GO])
    server.wait("started")
    server.close()
    (task.work / "go").touch()
    task.wait_for("cleared")
    server.acknowledges = True
    server.open()
    server.wait("cleared")
    assert [(m["type"], m["n"]) for m in server.messages if "n" in m] == [
        ("started", 1),
        ("started", 1),
        ("finished", 2),
        ("cleared", 3),
    ]


def test_acknowledged_facts_are_not_sent_again(task: Task, server: Server) -> None:
    task.run([*SH, UNTIL_GO])
    server.wait("started")
    server.stop(7)  # its answer comes after the launcher has read the acknowledgement
    server.wait("cleared", generation=7)
    server.close()
    server.open()
    server.wait("hello", count=2)
    (task.work / "go").touch()
    server.wait("cleared", generation=1)
    assert server.kinds().count("started") == 1


def test_acknowledgement_covers_all_earlier_facts(task: Task, server: Server) -> None:
    server.acknowledges = False
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    server.send("ack", n=2)
    server.stop(7)
    server.wait("cleared", generation=7)
    server.close()
    server.open()
    server.wait("cleared", count=2, generation=7)
    assert [m["n"] for m in server.messages if "n" in m] == [1, 2, 3, 4, 3, 4]


def test_ranks_continue_without_the_server(task: Task, server: Server) -> None:
    task.run([*SH, f"{UNTIL_GO}; echo on and on"])
    server.wait("started")
    server.close()
    (task.work / "go").touch()
    task.wait_for("cleared")
    assert task.texts("o") == ["on and on"]


def test_server_that_hangs_up_at_hello_is_tried_again(task: Task, server: Server) -> None:
    server.welcomes = False
    task.run([*SH, "exit 0"])
    for count in (1, 2, 3):
        server.wait("hello", count=count)
        server.welcomes = count > 1
        server.hang_up()
    server.wait("cleared")


@pytest.mark.parametrize(
    ("sent", "noted"),
    [
        (b"not json\n", "ignored an invalid message: b'not json'"),
        (b"[1, 2]\n", "ignored an invalid message"),
        (b'{"v": 2, "type": ["stop"]}\n', "ignored an invalid message"),
        (
            b'{"v": 3, "type": "leave"}\n',
            "ignored a message of version 3 of the protocol; this launcher speaks version 2",
        ),
        (b'{"v": 2, "type": "stop", "generation": 1}\n', "ignored an invalid message"),
        (b'{"v": 2, "type": "run", "generation": "one"}\n', "'one' is not a whole number"),
        (b'{"v": 2, "type": "resize", "ranks": 4}\n', ""),
        (b'{"v": 2, "type": "ack", "n": "many"}\n', ""),
    ],
)
def test_invalid_messages_are_ignored(sent: bytes, noted: str, task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    server.wait("started")
    server.send_bytes(sent)
    server.stop(2)
    server.wait("cleared", generation=2)
    assert noted in task.own_log()
    assert task.own_log().count("\n") == bool(noted)
    assert server.kinds() == ["started", "cleared"]


def test_message_may_arrive_in_pieces(task: Task, server: Server) -> None:
    server.acknowledges = False  # so that nothing is sent between the pieces
    task.run(["sleep", "600"])
    server.wait("started")
    stop: dict[str, Any] = {"generation": 1, "cause": "user", "notice_ms": 0, "kill_after_ms": 9000}
    line = json.dumps({"v": 2, "type": "stop", **stop}).encode() + b"\n"
    for byte in line:
        server.send_bytes(bytes([byte]))
    server.wait("cleared")


def test_endless_message_ends_the_connection(task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    server.wait("started")
    with suppress(OSError):  # it does not read all of it
        server.send_bytes(b"x" * (2 << 20))
    server.wait("hello", count=2)


IMPATIENT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from ganger.launcher import main, runtime
runtime.IDLE_S = 0.1
sys.exit(main.main(sys.argv))
"""


def test_launcher_exits_once_it_has_no_rank_and_no_server(task: Task) -> None:
    task.plan([*SH, "sleep 0.5; echo to the end"])
    launcher = task.start(program=["-c", IMPATIENT, str(task.archive)])
    assert launcher.wait() == 0
    assert task.texts("o") == ["to the end"]
    assert task.file("cleared").exists()
