"""Dumps of torch's flight recorder: the rank that the others wait for, ranks in unlike operations, and bad dumps."""

import json
import pickle
from pathlib import Path

import pytest

from ganger.diagnosis.diagnose_logs import diagnose_logs


def entry(sequence: int, state: str, name: str = "nccl:all_reduce", size: int = 100) -> dict[str, object]:
    return {
        "record_id": sequence,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": name,
        "input_sizes": [[size, 2]],
        "state": state,
        "is_p2p": False,
    }


def write_dump(folder: Path, rank: int, *entries: dict[str, object], is_json: bool = False) -> None:
    dump = {"version": "2.10", "pg_config": {}, "entries": list(entries)}
    data = json.dumps(dump).encode() if is_json else pickle.dumps(dump)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


@pytest.mark.parametrize("is_json", [False, True])
def test_the_rank_that_did_not_join(tmp_path: Path, is_json: bool) -> None:
    for rank in (0, 1, 3):
        write_dump(tmp_path, rank, entry(417, "completed"), entry(418, "started"), is_json=is_json)
    write_dump(tmp_path, 2, entry(416, "completed"), entry(417, "completed"), is_json=is_json)
    found = diagnose_logs(tmp_path).diagnosis
    assert (found.failure_class.name, found.rank, found.missing) == ("nccl_timeout_unknown_cause", 2, (2,))
    assert found.evidence[0].text == "flight recorder: rank 0 waits in ALLREDUCE 418 of group 0"


def test_unlike_operations(tmp_path: Path) -> None:
    write_dump(tmp_path, 0, entry(418, "scheduled"))
    write_dump(tmp_path, 1, entry(418, "started", "nccl:_all_gather_base"))
    found = diagnose_logs(tmp_path).diagnosis
    assert found.failure_class.name == "collective_mismatch"
    assert found.sentence.endswith(
        "rank 0 waits in ALLREDUCE 418 of 200 elements, rank 1 waits in ALLGATHERBASE 418 of 200 elements"
    )


def test_an_error_of_the_rank_that_is_missing_is_the_cause(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_dump(tmp_path, rank, entry(418, "started"))
    write_dump(tmp_path, 2, entry(417, "completed"))
    (tmp_path / "rank-2.log").write_text("KeyError: 'lr'\n")
    found = diagnose_logs(tmp_path).diagnosis
    assert (found.failure_class.name, found.rank) == ("python_error_user", 2)


class _Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("touched"),)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(_Runs()),
        pickle.dumps({"entries": [_Runs()]}),
        pickle.dumps({"entries": [{}]}),
        pickle.dumps({"entries": [{"collective_seq_id": "x", "profiling_name": 3, "state": None}]}),
        pickle.dumps([1, 2]),
        b"",
        b"\x80\x04broken",
        b'{"entries": 7}',
        b"{",
    ],
)
def test_a_bad_dump_is_skipped_and_runs_nothing(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    (tmp_path / "rank-0.log").write_text("KeyError: 'lr'\n")
    result = diagnose_logs(tmp_path)
    assert result.diagnosis.failure_class.name == "python_error_user"
    assert [sentence.partition(":")[0] for sentence in result.skipped] == ["nccl_trace_rank_0"]
    assert not (tmp_path / "touched").exists()
