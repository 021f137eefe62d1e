"""docs/reference/launcher-protocol.md lists exactly the messages and fields that the launcher sends or accepts."""

import itertools
import re
import selectors
import socket
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher import main, runtime
from ganger.launcher.protocol import messages
from ganger.launcher.protocol.link import Link
from ganger.launcher.protocol.server_address import Server

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "launcher-protocol.md").read_text()


def _table(title: str) -> dict[str, tuple[str, ...]]:
    """Return the fields by type of the table under a heading."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows}


def test_page_lists_what_the_launcher_sends() -> None:
    assert _table("Launcher to server") == messages.FROM_LAUNCHER


def test_page_lists_what_the_launcher_accepts() -> None:
    assert _table("Server to launcher") == messages.TO_LAUNCHER


def test_page_lists_the_exit_codes() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert codes == {
        main.LEFT,
        main.USAGE,
        main.BAD_CODE,
        main.NO_PLAN,
        runtime.NO_SERVER,
        main.CANNOT_WRITE,
        main.LOCKED,
    }


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("resized", {}), ("started", {"pid": 1}), ("cleared", {"step": 1})],
)
def test_link_sends_nothing_that_the_page_does_not_list(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(tmp_path / "s")), selector, dict, lambda message: None)
        with pytest.raises((KeyError, ValueError)):
            link.send_fact(kind, gang="g", node="n", generation=1, **fields)


def test_link_backs_off_from_a_tenth_of_a_second_to_one(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(tmp_path / "s")), selector, dict, lambda message: None)
        tries = [0.0]
        for _ in range(6):
            link.tick(tries[-1])
            tries.append(link.due)
    pauses = [round(after - before, 3) for before, after in itertools.pairwise(tries)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1, 1]


def test_link_sends_no_updates_while_not_welcomed(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = Link(Server(str(tmp_path / "s")), selector, dict, lambda message: None)
        link.send_update("progressed", gang="g", node="n", generation=1, step=1, metrics={}, milestone=False)
        assert not link.has_unacknowledged
        link.tick(0)
        link.send_update("progressed", gang="g", node="n", generation=1, step=2, metrics={}, milestone=False)
        with listener.accept()[0] as connection:
            assert connection.recv(4096) == b'{"v": 2, "type": "hello"}\n'
        link.close()


def test_link_forgets_what_is_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(tmp_path / "s")), selector, dict, lambda message: None)
        for step in (1, 2):
            link.send_fact("cleared", gang="g", node="n", generation=step, killed=[], grace_ms=0)
        link._acknowledged(1)
        assert link.has_unacknowledged, "the second is sent again"
        link._acknowledged(2)
        assert not link.has_unacknowledged, "a launcher whose report has arrived does not wait for more"


@pytest.mark.parametrize(("prefix", "is_remote"), [("", False), ("unix:", True)])
def test_a_tunnels_socket_leads_to_a_server_elsewhere(tmp_path: Path, prefix: str, is_remote: bool) -> None:
    """The launcher gets its plan from a server that shares no disk with it, though it connects to a socket here."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        server = Server(f"{prefix}{tmp_path}/s")
        connection = server.dial()
        assert connection is not None
        connection.close()
    assert server.is_remote is is_remote
