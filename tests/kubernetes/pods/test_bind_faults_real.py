"""All-or-nothing binding on a real API server under faults: a small `bench bind_faults_real`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kubernetes.bind_faults import outcomes
from bench.kubernetes.bind_faults_real import run_lives
from bench.kubernetes.disrupting import End
from tools.testcluster import Unavailable
from tools.testcluster.cluster import require_built

MEMBERS = 12
SEEDS = [0, 1]
"""Broken connections, lost responses, lost nodes, a killed controller."""


@pytest.mark.cluster
def test_none_or_all_are_bound_in_the_end() -> None:
    try:
        require_built()
    except Unavailable as error:
        pytest.skip(str(error))
    actual = list(run_lives(MEMBERS, SEEDS))
    assert all(end.holds for end in actual), actual
    assert [end.bound_late for end in actual] == [MEMBERS, MEMBERS]
    assert [end.kills for end in actual] == [1, 0]
    assert all(end.faults for end in actual)


def test_lives_that_are_kept_are_not_lived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def live(seeds: list[int]) -> Iterator[End]:
        for seed in seeds:
            lived.append(seed)
            yield end(seed)
            if seed == 1:
                raise KeyboardInterrupt

    def end(seed: int) -> End:
        counts = {"members": 3, "bound": 3, "faults": seed, "kills": 0, "bound_late": 3}
        return End(**counts, is_mixed=False, is_led=False, settled_s=0.5, half_s=0.2, late_s=10.0)

    lived: list[int] = []
    monkeypatch.setenv("GANGER_BENCH_KEPT", str(tmp_path / "kept"))
    with pytest.raises(KeyboardInterrupt):
        outcomes(4, 3, live)
    assert outcomes(4, 3, live) == [end(seed) for seed in range(4)]
    assert lived == [0, 1, 2, 3]
