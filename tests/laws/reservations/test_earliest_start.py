"""The earliest start beside maintenance, against a search through all times from raw figures."""

from dataclasses import dataclass
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
    assert (None if start is None else start.at_ms) == (
        None if expected_h is None else film.now_ms + expected_h * HOUR_MS
    )


def _meets_any(window: Window, others: list[Window]) -> bool:
    return any(
        other.node == window.node and other.from_h < window.until_h and window.from_h < other.until_h
        for other in others
    )


def _first_hour(film: Film, windows: list[Window], demand: Demand) -> int | None:
    """Return the first hour in which enough nodes have room and stay available; all lengths are whole hours."""
    used = {f"n{number}": [0] * 100 for number in range(1, NODES + 1)}
    for gang in film.state.gangs.values():
        for share in gang.start.shares if gang.start else ():
            drained = [window.from_h for window in windows for node in gang.nodes if window.node == node]
            end_h = min([(gang.job.spec.limits.time_ms or 0) // HOUR_MS, *drained])
            # What ends now is still there now.
            for hour in range(max(1, end_h)) if end_h else (0,):
                used[share.node][hour] += len(share.devices)
    for hour in range(90):
        fits = [
            node
            for node, counts in used.items()
            if GPUS - counts[hour] >= demand.gpus
            and not any(
                window.node == node and window.from_h < hour + demand.hours and hour < window.until_h
                for window in windows
            )
        ]
        if len(fits) >= demand.nodes:
            return hour
    return None
