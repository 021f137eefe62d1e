"""Rules by which a node that is not ready counts as lost: against a simple reference, and case by case."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.backends.kubernetes.nodes.node_patience import (
    API_OUTAGE_S,
    DISCONNECTED_LOST_AFTER_S,
    LOST_AFTER_S,
    LauncherEvidence,
    NodePatience,
)

EVERY_S = 5
NAMES = ("a", "b", "c", "d")
CONNECTED = LauncherEvidence(connected=True)


def with_ready(*ready: str) -> NodePatience:
    patience = NodePatience()
    for name in ready:
        patience.ready(name)
    return patience


def lost_at(patience: NodePatience, launchers: dict[str, LauncherEvidence], *, within_s: int = 2000) -> dict[str, int]:
    """Return when each node is lost, checked each second."""
    return {name: second for second in range(within_s) for name in patience.find_lost(float(second), launchers)}


def test_a_node_of_which_nothing_is_heard_is_lost_when_its_pods_are_evicted() -> None:
    patience = with_ready("b")
    patience.unready("a", 0.0)
    assert lost_at(patience, {}) == {"a": LOST_AFTER_S}


def test_a_node_whose_launcher_is_gone_too_is_lost_soon_after_both_are_known() -> None:
    for unready_s, disconnected_s in ((0.0, 30.0), (30.0, 0.0)):
        patience = with_ready("b")
        patience.unready("a", unready_s)
        assert lost_at(patience, {"a": LauncherEvidence(disconnected_s=disconnected_s)}) == {
            "a": 30 + DISCONNECTED_LOST_AFTER_S
        }


def test_a_node_with_a_connected_launcher_is_never_lost_and_begins_anew_when_that_parts() -> None:
    patience = with_ready("b")
    patience.unready("a", 0.0)
    assert lost_at(patience, {"a": CONNECTED}, within_s=100_000) == {}
    parted = {"a": LauncherEvidence(disconnected_s=100_000.0)}
    assert patience.find_lost(100_000.0 + DISCONNECTED_LOST_AFTER_S - 1, parted) == []
    assert patience.find_lost(100_000.0 + DISCONNECTED_LOST_AFTER_S, parted) == ["a"]


def test_many_nodes_at_once_are_waited_for_as_without_launcher_evidence() -> None:
    patience = with_ready("c", "d")
    for name in ("a", "b"):
        patience.unready(name, 0.0)
    disconnected = {name: LauncherEvidence(disconnected_s=0.0) for name in ("a", "b")}
    assert lost_at(patience, disconnected) == dict.fromkeys(disconnected, LOST_AFTER_S)


def test_where_no_node_is_ready_none_is_lost() -> None:
    patience = NodePatience()
    for name in NAMES:
        patience.unready(name, 0.0)
    assert lost_at(patience, dict.fromkeys(NAMES, LauncherEvidence(disconnected_s=0.0))) == {}
    patience.ready("d")
    assert patience.find_lost(LOST_AFTER_S, {}) == ["a", "b", "c"]


def test_the_time_stands_still_while_the_api_server_is_away_and_begins_anew_afterwards() -> None:
    patience = with_ready("b")
    patience.unready("a", 0.0)
    patience.api_responds(290.0, responds=False)
    assert patience.find_lost(890.0, {}) == []
    patience.api_responds(890.0, responds=True)
    assert patience.find_lost(890.0 + LOST_AFTER_S - 1, {}) == []
    assert patience.find_lost(890.0 + LOST_AFTER_S, {}) == ["a"]


def test_a_watch_that_breaks_for_a_moment_gives_no_more_time() -> None:
    patience = with_ready("b")
    patience.unready("a", 0.0)
    for second in range(0, int(LOST_AFTER_S), 10):
        patience.api_responds(float(second), responds=False)
        patience.api_responds(second + API_OUTAGE_S - 1, responds=True)
    assert patience.find_lost(LOST_AFTER_S, {}) == ["a"]


def test_a_node_that_is_shut_down_is_lost_at_once() -> None:
    patience = with_ready("b")
    patience.unready("a", 5.0, certain=True)
    assert patience.find_lost(5.0, {"a": CONNECTED}) == ["a"]


def test_a_node_is_lost_once_until_it_is_ready_again() -> None:
    patience = with_ready("b")
    patience.unready("a", 0.0)
    assert patience.find_lost(LOST_AFTER_S, {}) == ["a"]
    assert patience.find_lost(2 * LOST_AFTER_S, {}) == []
    patience.ready("a")
    patience.unready("a", 1000.0)
    assert (patience.lost, patience.suspects) == (set(), ["a"])
    assert patience.find_lost(1000.0 + LOST_AFTER_S, {}) == ["a"]


# -- against a reference ----------------------------------------------------------------------------------------------


@dataclass
class Look:
    """Facts at one check. unready, connected: nodes; responds: whether the API server does."""

    unready: frozenset[str]
    connected: frozenset[str]
    responds: bool


@dataclass
class Reference:
    """The rules, evaluated anew at each check over the whole history."""

    past: list[Look] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)

    def step(self, look: Look) -> set[str]:
        self.past.append(look)
        self.lost &= look.unready
        return {name for name in look.unready - self.lost if self._is_lost(name, look)}

    def _is_lost(self, name: str, look: Look) -> bool:
        is_calm = look.responds and look.unready != set(NAMES) and name not in look.connected
        disconnected_s = self._parted_s(name)
        suspects = look.unready - self.lost
        is_mass_outage = 3 * len(suspects) > len(NAMES) - len(self.lost) and len(suspects) > 1
        patience_s = LOST_AFTER_S if disconnected_s is None or is_mass_outage else DISCONNECTED_LOST_AFTER_S
        from_s = max(self._unready_since_s(name), self._back_s(), -1 if disconnected_s is None else disconnected_s)
        return is_calm and EVERY_S * (len(self.past) - 1) >= from_s + patience_s

    def _unready_since_s(self, name: str) -> int:
        return max(
            (EVERY_S * (second + 1) for second, item in enumerate(self.past) if name not in item.unready), default=0
        )

    def _parted_s(self, name: str) -> int | None:
        """Return when a launcher was last connected, if ever."""
        return max(
            (EVERY_S * (second + 1) for second, item in enumerate(self.past) if name in item.connected), default=None
        )

    def _back_s(self) -> int:
        """Return when the API server last responded again after a long outage."""
        back_s, away_s = -1, 0
        for second, item in enumerate(self.past):
            if item.responds:
                back_s, away_s = (EVERY_S * second if away_s > API_OUTAGE_S else back_s), 0
            else:
                away_s += EVERY_S
        return back_s


SUBSETS = st.frozensets(st.sampled_from(NAMES))
STRETCHES = st.lists(
    st.tuples(st.integers(1, 70), st.builds(Look, SUBSETS, SUBSETS, st.booleans())), min_size=1, max_size=8
)


@settings(max_examples=100, deadline=None)
@given(STRETCHES)
def test_it_does_what_the_reference_says(stretches: list[tuple[int, Look]]) -> None:
    patience, reference = NodePatience(), Reference()
    parted: dict[str, float] = {}
    before: frozenset[str] = frozenset()
    at_s = 0.0
    for is_mass_outage, look in stretches:
        for _ in range(is_mass_outage):
            parted |= dict.fromkeys(before - look.connected, at_s)
            before = look.connected
            for name in NAMES:
                if name in look.unready:
                    patience.unready(name, at_s)
                else:
                    patience.ready(name)
            patience.api_responds(at_s, responds=look.responds)
            launchers = {name: LauncherEvidence(name in look.connected, parted.get(name)) for name in NAMES}
            actual = set(patience.find_lost(at_s, launchers))
            assert actual == reference.step(look), at_s
            reference.lost |= actual
            at_s += EVERY_S
