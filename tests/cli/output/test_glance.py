"""The picture of `ganger top`: cells by GPU, node and domain, within 80 columns, with and without colours."""

from dataclasses import asdict

from ganger.cli.output.top_view import NARROW, picture_lines, plain_text
from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.query.cluster_overview import MAX_CELLS, overview
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.views.overview import Order, Overview
from ganger.policies import dynamic
from tests.pictures.film import Film


def text(view: Overview, width: int = NARROW) -> list[str]:
    return ["".join(piece for piece, _ in line).rstrip() for line in picture_lines(asdict(view), width)]


def overview_of(film: Film) -> Overview:
    return overview(film.state, film.now_ms, film.policy)


def test_few_nodes_are_drawn_gpu_by_gpu() -> None:
    film = Film(dynamic, "s1/r1/n1:AA.. s1/r1/n2:.... s2/r2/n3:BBBB A,time=1h B,time=2h", "q=8")
    film.do("cordon n2")
    film.do("C:1x4,q=q")
    film.run_cycles()
    lines = text(overview_of(film))
    assert lines[0].endswith(" 6 of 12 GPUs used (50%), 2 free, 4 out of service")
    assert lines[1] == "3 nodes: 1 cordoned, 2 ready; jobs: 2 running, 1 pending"
    assert lines[3:5] == ["s1/r1  n1 ██░░   n2 xxxx", "s2/r2  n3 ████"]
    root, default, q = (line.split() for line in lines[7:10])
    assert (root[:2], default[:4], q[:6]) == (
        ["root", "-"],
        ["default", "-", "6", "4"],  # q's guarantee comes first, and n2 is not in service
        ["q", "8", "0", "4", "0", "1"],
    )
    assert lines[-1].split()[:5] == ["C", "q", "ann", "1x4", "gpu"]
    assert lines[-1].split()[6] == "by", "its start is reserved at the end of A"


def test_a_fragmented_rack_is_named() -> None:
    film = Film(dynamic, "r1/n1:AA.. r1/n2:BB.. r2/n3:.... A,time=1h B,time=1h", "")
    lines = text(overview_of(film))
    assert "largest gang in the cluster now: 1, defragmented: 2 nodes with 4 GPUs" in lines
    assert not any("largest gang" in line for line in text(overview_of(Film(dynamic, "r1/n1:AA.. A,time=1h", ""))))


def test_more_nodes_are_drawn_as_one_character_each() -> None:
    row = " ".join(
        f"r{index // 20}/n{index:02}:{'AAAA' if index < 10 else 'B...' if index < 15 else '....'}"
        for index in range(40)
    )
    lines = text(overview_of(Film(dynamic, row, "")))
    assert lines[3] == "r0  ██████████▂▂▂▂▂·····  45/80"
    assert lines[4] == "r1  ····················  0/80"
    assert plain_text([("▂█·x░", "")]) in ("▂█·x░", "2#.x.")


def test_thousands_of_nodes_are_folded_by_domain() -> None:
    state = State()
    nodes = tuple(Node(name=f"n{index}", domains=(f"r{index // 32:03}",), gpus=8) for index in range(3 * MAX_CELLS))
    fold(state, e.Stamped(1, 0, e.NodesListed(nodes=nodes)))
    plan(state, 0, dynamic)
    view = overview(state, 0, dynamic)
    assert (view.cell, sum(len(block.cells) for block in view.blocks)) == ("rack", 3 * MAX_CELLS // 32)
    assert sum(cell.nodes for block in view.blocks for cell in block.cells) == len(nodes)
    assert max(map(len, text(view))) <= NARROW


def test_pending_jobs_are_sorted_by_the_given_key() -> None:
    film = Film(dynamic, "n1:AAAAAAAA", "p= q=")
    film.do("C:1x4,q=q,user=cat,prio=low D:1x8,q=p,user=bob")
    film.do("+1h")
    film.do("E:1x2,q=q,user=ann,prio=high F:1x1,q=p,user=dan")
    film.run_cycles()
    orders: dict[Order, list[str]] = {
        "wait": ["C", "D", "E", "F"],
        "gpus": ["D", "C", "E", "F"],
        "priority": ["E", "D", "F", "C"],
        "user": ["E", "D", "C", "F"],
        "queue": ["D", "F", "C", "E"],
    }
    for order, names in orders.items():
        view = overview(film.state, film.now_ms, film.policy, order)
        assert (view.order, [job.job for job in view.next]) == (order, names)
        lines = text(view)
        assert any(line.startswith(f"PENDING, BY {order.upper()}") for line in lines)
        assert max(map(len, lines)) <= NARROW


def test_nodes_in_maintenance_are_out_of_service() -> None:
    film = Film(dynamic, "n1:AA.. n2:....", "")
    film.do("maintain n2 0s 1h")
    film.do("maintain n1 1h 1h")
    film.run_cycles()
    assert text(overview_of(film))[0].endswith(" 2 of 8 GPUs used (25%), 2 free, 4 out of service")


def test_only_a_dozen_of_thousands_of_pending_jobs_is_listed() -> None:
    film = Film(dynamic, "n1:A", "")
    film.state.validate = lambda: None  # type: ignore[method-assign] - slow with thousands of jobs
    film.do(" ".join(f"J{index}:1x1" for index in range(2_000)))
    film.run_cycles()
    assert text(overview_of(film))[-1] == "and 1,988 more: ganger ls --state pending"


def test_every_line_fits_in_80_columns() -> None:
    row = " ".join(f"spine-one/rack-{index // 5}/node-{index:02}:AAAAAAAA" for index in range(20))
    film = Film(dynamic, row, " ".join(f"a-rather-long-name-{index}=4" for index in range(6)))
    film.do(" ".join(f"J{index}:{index + 1}x8,q=a-rather-long-name-{index}" for index in range(6)))
    film.run_cycles()
    assert max(map(len, text(overview_of(film)))) <= NARROW
