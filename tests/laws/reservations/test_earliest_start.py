"""The earliest start beside maintenance, against a search through all times from raw figures."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.placement.start_check import start_request
from ganger.core.reservations.earliest_start import find_earliest_start
from ganger.model.units import HOUR_MS
from ganger.policies import fifo
from tests.pictures.film import Film

GPUS: Final = 2
NODES: Final = 3


@dataclass(frozen=True)
class Window:
    """Maintenance of a node, in hours from now on."""

    node: str
    from_h: int
    length_h: int

    @property
    def until_h(self) -> int:
        return self.from_h + self.length_h


@dataclass(frozen=True)
class Demand:
    """The waiting gang."""

    nodes: int
    gpus: int
    hours: int


RUNNING = st.lists(st.tuples(st.integers(1, 2), st.integers(1, GPUS), st.integers(1, 6)), max_size=4)
WINDOWS = st.lists(
    st.builds(Window, st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 6), st.integers(1, 3)), max_size=4
)
DEMANDS = st.builds(Demand, st.integers(1, NODES), st.integers(1, GPUS), st.integers(1, 4))


@given(RUNNING, WINDOWS, DEMANDS)
def test_the_earliest_start_is_the_first_time_with_room(
    running: list[tuple[int, int, int]], windows: list[Window], demand: Demand
) -> None:
    film = Film(fifo, " ".join(f"n{number}:{'.' * GPUS}" for number in range(1, NODES + 1)), "")
    for number, (nodes, gpus, hours) in enumerate(running):
        film.do(f"R{number}:{nodes}x{gpus},time={hours}h")
    film.run_cycles()
    film.do(f"W:{demand.nodes}x{demand.gpus},time={demand.hours}h")
    apart = [window for index, window in enumerate(windows) if not _meets_any(window, windows[:index])]
    for window in apart:
        film.do(f"maintain {window.node} {window.from_h}h {window.length_h}h")
    gang = film.state.gangs["W"]
    start = find_earliest_start(film.state, start_request(gang), film.now_ms)
    expected_h = _first_hour(film, apart, demand)
    if start is None or start.at_ms is None or expected_h is None:
        assert (start is None or start.at_ms is None) == (expected_h is None)
    else:
        # A window that begins when the gang ends allows a start now, and none a ms later, when what leaves is gone.
        assert start.at_ms - film.now_ms - expected_h * HOUR_MS in (0, 1)


def _meets_any(window: Window, others: list[Window]) -> bool:
    return any(
        other.node == window.node and other.from_h < window.until_h and window.from_h < other.until_h
        for other in others
    )


def _first_hour(film: Film, windows: list[Window], demand: Demand) -> int | None:
    """Return the first hour in which enough nodes have room and stay available; all lengths are whole hours.

    What leaves now still holds its nodes now, and not a moment later: that is hour 0 too, but a window that begins when
    the gang would end is then met.
    """
    used, leaving = ({f"n{number}": [0] * 100 for number in range(1, NODES + 1)} for _ in range(2))
    for gang in film.state.gangs.values():
        for share in gang.attempt.start.shares if gang.attempt.start else ():
            drained = [window.from_h for window in windows for node in gang.nodes if window.node == node]
            end_h = min([(gang.job.spec.limits.time_ms or 0) // HOUR_MS, *drained])
            for hour in range(end_h):
                used[share.node][hour] += len(share.devices)
            leaving[share.node][0] += 0 if end_h else len(share.devices)
    if _is_possible(used, leaving, windows, demand, begin_h=0):
        return 0
    nothing = {node: [0] * 100 for node in used}
    moments = [Fraction(1, 1000), *map(Fraction, range(1, 90))]
    return next((int(at_h) for at_h in moments if _is_possible(used, nothing, windows, demand, begin_h=at_h)), None)


def _is_possible(
    used: dict[str, list[int]],
    leaving: dict[str, list[int]],
    windows: list[Window],
    demand: Demand,
    *,
    begin_h: Fraction | int,
) -> bool:
    fits = [
        node
        for node, counts in used.items()
        if GPUS - counts[int(begin_h)] - leaving[node][int(begin_h)] >= demand.gpus
        and not any(
            window.node == node and window.from_h < begin_h + demand.hours and begin_h < window.until_h
            for window in windows
        )
    ]
    return len(fits) >= demand.nodes
