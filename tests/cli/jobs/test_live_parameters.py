"""`--param` of `ganger clone` and `ganger retry` at a real server."""

from pathlib import Path

import pytest

from tests.cli.live import Live, live, place

__all__ = ["live", "place"]

FILE = """
name: exp
run: echo "lr ${{ params.lr }} $WD"; exit ${{ params.code }}
env: {WD: "wd ${{ params.wd }}"}
params: {lr: 0.5, wd: 1, code: 3}
retry: {max: 0}
"""


@pytest.fixture
def first(live: Live, tmp_path: Path) -> str:
    """Return a job that has failed."""
    (tmp_path / "job.yaml").write_text(FILE)
    job = live.submit("-f", str(tmp_path / "job.yaml"), "--param", "wd=2")
    live.until(job, "failed")
    return job


def test_a_clone_and_a_retry_have_the_parameters_that_are_given(live: Live, first: str) -> None:
    clone = live("clone", first, "--param", "lr=0.03", "--param", "code=0").out.strip()
    live.until(clone, "succeeded")
    assert live("logs", clone).out == "lr 0.03 wd 2\n"
    assert live.json("get", clone)["spec"]["params"] == {"lr": "0.03", "wd": "2", "code": "0"}
    assert "  params     lr=0.03 wd=2 code=0\n" in live("get", clone).out
    keys = [line.split()[0] for line in live("diff", first, clone).out.splitlines()[1:]]
    assert keys[:3] == ["run", "params.lr", "params.code"]
    assert not [key for key in keys if key.startswith("templates")]

    again = live("retry", clone, "--param", "wd=7").out.strip()
    live.until(again, "succeeded")
    assert live("logs", again).out == "lr 0.03 wd 7\n"
    other = live("clone", again, "--env", "WD=none", "--", "sh", "-c", "echo $GANGER_TRIAL_PARAMS").out.strip()
    live.until(other, "succeeded")
    assert live.json("get", other)["spec"]["params"] == {}, "nothing of the new job uses them"


def test_a_parameter_that_there_is_not_is_refused(live: Live, first: str) -> None:
    for verb in ("clone", "retry"):
        result = live(verb, first, "--param", "lrr=1")
        assert (result.code, result.out) == (2, "")
        expected = f"{first} has no parameter lrr; its parameters: code, lr, wd\n  next: ganger get {first}\n"
        assert result.err == f"error: {expected}"
        assert "--param lr is not NAME=VALUE" in live(verb, first, "--param", "lr").err
    plain = live.submit("--", "true")
    live.until(plain, "succeeded")
    assert f"{plain} has no parameter lr: it has no parameters" in live("retry", plain, "--param", "lr=1").err
