"""`State.validate` detects every derived figure that is wrong: the laws depend on it."""

from collections.abc import Callable

import pytest

from ganger.core.queues.share_bounds import AccountShares
from ganger.core.state.state import State
from ganger.policies import dynamic
from tests.pictures.film import Film


def lived() -> State:
    """Return a state in which one gang runs, another waits, and a third has a reservation."""
    film = Film(dynamic, "n1:.. n2:..", "")
    film.do("A:1x2,time=1h B:1x1,time=2h")
    film.run_cycles()
    film.do("C:2x2,time=1h D:1x1")
    film.run_cycles()
    film.state.validate()
    return film.state


def _more_free(state: State) -> None:
    state.nodes.free.gpus[0] += 1


def _owner_is_missing(state: State) -> None:
    state.nodes.devices.owner[0] = 0


def _used_less(state: State) -> None:
    state.tree.usage[0][0] -= 1


def _user_holds_nothing(state: State) -> None:
    state.tree.users.clear()


def _queue_has_used_nothing(state: State) -> None:
    state.fair_shares.queues[0] = AccountShares()


def _users_have_used_nothing(state: State) -> None:
    state.fair_shares.users.clear()


def _counted_from_elsewhere(state: State) -> None:
    state.fair_shares.base -= 1


def _half_as_long(state: State) -> None:
    state.fair_shares.half_life_ms //= 2


def _holds_nothing(state: State) -> None:
    del state.allocations["A"]


TAMPERED: dict[str, Callable[[State], None]] = {
    tampers.__name__.strip("_"): tampers
    for tampers in (
        *(_more_free, _owner_is_missing, _used_less, _user_holds_nothing, _queue_has_used_nothing),
        *(_users_have_used_nothing, _counted_from_elsewhere, _half_as_long, _holds_nothing),
    )
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_is_not_as_it_would_be_anew_is_seen(name: str) -> None:
    state = lived()
    TAMPERED[name](state)
    with pytest.raises(AssertionError):
        state.validate()
