"""The exception that ended a rank, in the output of CPython and libraries; `{D}` is the job's directory."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.launcher.logs.python_error import find_error, find_exit_error, most_telling_line, read_error
from ganger.launcher_server import message_schema
from tests.launcher.forged import HEAD, MESSAGES, written

PLAIN = """\
Traceback (most recent call last):
  File "{D}/train.py", line 31, in <module>
    main()
  File "{D}/model/net.py", line 7, in rate
    return config["lr"]
           ~~~~~~^^^^^^
  File "/opt/lib/python3.11/site-packages/conf/read.py", line 90, in __getitem__
    raise KeyError(name)
KeyError: 'lr'
"""
OF_NET = "model/net.py:7: KeyError: 'lr'"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"
WRAPPED = """\
Traceback (most recent call last):
  File "{D}/train.py", line 40, in load
    raise ConfigError("no optimizer") from error
conf.errors.ConfigError: no optimizer
"""
EMPTY_QUEUE = """\
Traceback (most recent call last):
  File "{D}/train.py", line 20, in main
    batch = ready.get(timeout=3)
_queue.Empty
"""
OF_WORKER = """\
Traceback (most recent call last):
  File "{D}/train.py", line 20, in main
    for batch in loader:
  File "/opt/lib/python3.11/site-packages/torch/_utils.py", line 700, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 300, in _worker_loop
    data = fetcher.fetch(index)
  File "{D}/data.py", line 14, in __getitem__
    left, right = row.split(",")
ValueError: not enough values to unpack (expected 2, got 1)
"""
OF_SPAWN = """\
Traceback (most recent call last):
  File "{D}/train.py", line 50, in <module>
    mp.spawn(work, nprocs=2)
torch.multiprocessing.spawn.ProcessRaisedException:\x20

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "{D}/train.py", line 12, in work
    return rows[9]
IndexError: list index out of range
"""
OF_POOL = """\
multiprocessing.pool.RemoteTraceback:\x20
\"\"\"
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
  File "{D}/train.py", line 3, in tokens
    return 1 / x
ZeroDivisionError: division by zero
\"\"\"
"""
OF_RAY = """\
Traceback (most recent call last):
  File "{D}/train.py", line 9, in <module>
    ray.get(work.remote())
ray.exceptions.RayTaskError(ValueError): ray::work() (pid=7, ip=10.0.0.1)
  File "{D}/train.py", line 5, in work
    raise ValueError("bad shard")
ValueError: bad shard
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "{D}/train.py", line 15, in epoch
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "{D}/train.py", line 11, in load
    |     return sum(rows)
    | TypeError: 'NoneType' object is not iterable
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "{D}/train.py", line 12, in load
    |     return len(rows)
    | ValueError: another one
    +------------------------------------
"""
SYNTAX = """\
  File "{D}/train.py", line 16
    for epoch in range(3)
                         ^
SyntaxError: expected ':'
"""
DEEP = '  File "{D}/tree.py", line 4, in count\n    return self.count()\n' * 900 + "RecursionError: too deep\n"
IGNORED = "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + PLAIN.replace("'lr'", "'other'")
CHILD = "Process Process-1:\n" + PLAIN
LOGGED = "ERROR:root:training failed\n" + PLAIN
STATE = """\
Traceback (most recent call last):
  File "{D}/train.py", line 19, in main
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "a.weight".\x20
"""
FATAL = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "{D}/train.py", line 4 in peek
  File "{D}/train.py", line 5 in <module>
"""
THROWN = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 0] Watchdog caught it\n"
)
TORCHRUN = """\
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_19:48:13
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 7)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7
============================================================
"""
NCCL = PLAIN.replace(
    "KeyError: 'lr'",
    """\
torch.distributed.DistBackendError: NCCL error in: /c10d/NCCLUtils.cpp:93, invalid usage, NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60
[W1126 04:05:47.005 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called before program exit""",
)
OF_RANK_1 = "[rank1]: " + PLAIN.replace("\n", "\n[rank1]: ")
WAKE = OF_RANK_1.replace("[rank1]", "[rank0]").replace("KeyError: 'lr'", "RuntimeError: Connection closed by peer")
BOXED = """\
╭──────────────── Traceback (most recent call last) ────────────────╮
│ {D}/train.py:4 in <module>                                        │
│                                                                   │
│   3 │   return {}['lr']                                           │
│ ❱ 4 f()                                                           │
╰───────────────────────────────────────────────────────────────────╯
KeyError: 'lr'
"""


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (PLAIN, OF_NET),
        ("[rank0]: " + PLAIN.replace("\n", "\n[rank0]: "), OF_NET),
        (PLAIN + CAUSED + WRAPPED, OF_NET + " | train.py:40: ConfigError: no optimizer"),
        (PLAIN + MEANWHILE + WRAPPED, OF_NET + " | train.py:40: ConfigError: no optimizer"),
        (WRAPPED + "later\n" + PLAIN, OF_NET),
        (PLAIN + IGNORED, OF_NET),
        (LOGGED, OF_NET),
        ("Exception in thread reader:\n" + PLAIN + "\n" + EMPTY_QUEUE, OF_NET),
        (CHILD, OF_NET),
        (CHILD + "\n" + EMPTY_QUEUE, OF_NET),
        (EMPTY_QUEUE, "train.py:20: Empty: batch = ready.get(timeout=3)"),
        (OF_WORKER, ("data.py:14: ValueError: not enough values to unpack (expected 2, got 1) | "
            "train.py:20: ValueError: Caught ValueError in DataLoader worker process 0.")),
        (OF_SPAWN, "train.py:12: IndexError: list index out of range | train.py:50: ProcessRaisedException"),
        (OF_POOL + CAUSED + WRAPPED, ("train.py:3: ZeroDivisionError: division by zero | "
            "train.py:40: ConfigError: no optimizer")),
        (OF_RAY, ("train.py:5: ValueError: bad shard | "
            "train.py:9: RayTaskError(ValueError): ray::work() (pid=7, ip=10.0.0.1)")),
        (GROUP, ("train.py:11: TypeError: 'NoneType' object is not iterable | "
            "train.py:15: ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)")),
        (SYNTAX, "train.py:16: SyntaxError: expected ':'"),
        (DEEP, "tree.py:4: RecursionError: too deep"),
        (STATE, ("train.py:19: RuntimeError: Error(s) in loading state_dict for Net: "
            'Missing key(s) in state_dict: "a.weight".')),
        (FATAL, "train.py:4: Fatal Python error: Segmentation fault"),
        (
            "[rank1]: [rank1]: " + NCCL.replace("\n", "\n[rank1]: [rank1]: "),
            OF_NET.replace("KeyError: 'lr'", "DistBackendError: NCCL error in: /c10d/NCCLUtils.cpp:93, invalid usage, "
            "NCCL version 2.28.9 ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error: "
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"),
        ),
        (THROWN, ":0: DistBackendError: [Rank 0] Watchdog caught it"),
        (
            TORCHRUN,
            (":0: ChildFailedError: rank: 1 (local_rank: 1) exitcode: -9 (pid: 7) traceback: "
            "Signal 9 (SIGKILL) received by PID 7"),
        ),
        (
            "python: can't open file 'trian.py': [Errno 2] No such file or directory\n"
            "E1126 05:30:11.470000 18743 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2)\n"
            + TORCHRUN.replace("-9", "2").replace("Signal 9 (SIGKILL) received by PID 7", "To enable traceback see: U"),
            (":0: ChildFailedError: rank: 1 (local_rank: 1) exitcode: 2 (pid: 7): it wrote "
            "\"python: can't open file 'trian.py': [Errno 2] No such file or directory\""),
        ),
        (WAKE + "\n" + OF_RANK_1 + "\n" + TORCHRUN, OF_NET + " | torchrun ended: its rank 1 failed first"),
        (PLAIN + TORCHRUN, OF_NET + " | torchrun ended: its rank 1 failed first"),
        (BOXED, "train.py:4: KeyError: 'lr'"),
        ("\x1b[31m" + PLAIN.replace("KeyError", "\x1b[1mKeyError\x1b[0m"), OF_NET),
        (PLAIN.replace("{D}/model/net.py", "/elsewhere/net.py").replace("{D}/train.py", "/elsewhere/train.py"),
            "/elsewhere/net.py:7: KeyError: 'lr'"),
        (PLAIN + "step\n" * 100, None),
        ("Epoch 3: loss 0.1\nusage: train.py\n", None),
        ('  File "{D}/train.py", line 3, in f\n    here()\nepoch: 3\n', None),
        ("", None),
    ],
)  # fmt: skip
def test_the_first_cause_is_found(text: str, summary: str | None) -> None:
    assert _summary(text) == summary


@pytest.mark.parametrize(
    ("earlier", "last", "is_cause"),
    [
        (LOGGED, EMPTY_QUEUE, False),
        ("Exception in thread reader:\n" + PLAIN, EMPTY_QUEUE, True),
        ("Exception in thread reader:\n" + PLAIN, WRAPPED, False),
        (PLAIN, TORCHRUN, True),
    ],
)
def test_an_earlier_error(earlier: str, last: str, is_cause: bool) -> None:
    lines = [(1, line) for line in earlier.splitlines()] + [(60_000, line) for line in last.splitlines()]
    error = find_error(lines, "{D}")
    assert error is not None
    assert (error["type"] == "KeyError") is is_cause


def _summary(text: str) -> str | None:
    lines = [(1, line) for line in text.replace("{D}", "/job").splitlines()]
    error = find_error(lines, "/job")
    if error is None:
        return None
    summary = f"{error['file']}:{error['line']}: {error['type']}: {error['message'] or error['source']}"
    return f"{summary} | {error['led_to']}" if error["led_to"] else summary


def _divide() -> float:
    return 1 / 0


def _wrap() -> None:
    try:
        _divide()
    except ZeroDivisionError as error:
        raise RuntimeError("cannot go on") from error


def _note() -> None:
    error = ValueError("row 7")
    error.add_note("of shard 3")
    raise error


def _group() -> None:
    raise ExceptionGroup("two", [_catch(_wrap), KeyError("x")])


def _imports() -> None:
    compile("def f(:\n", str(Path(__file__).with_name("broken.py")), "exec")


def _catch(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (_divide, "ZeroDivisionError", "division by zero"),
        (_wrap, "ZeroDivisionError", "division by zero"),
        (_note, "ValueError", "row 7"),
        (_group, "ZeroDivisionError", "division by zero"),
        (_imports, "SyntaxError", "invalid syntax"),
    ],
)
def test_as_this_python_prints_it(function: Callable[[], object], kind: str, message: str) -> None:
    text = "".join(traceback.format_exception(_catch(function)))
    error = find_error([(1, line) for line in text.splitlines()], str(Path(__file__).parent))
    assert error is not None
    assert (error["type"], error["message"]) == (kind, message)
    assert error["file"] == ("broken.py" if function is _imports else Path(__file__).name)


def log(tmp_path: Path, text: str, stream: str = "e") -> str:
    path = tmp_path / "rank-0.log"
    lines = text.replace("{D}", str(tmp_path)).splitlines()
    path.write_text("".join(f"1 {stream} {line}\n" for line in lines))
    return str(path)


def test_in_a_log_of_both_streams_and_pieces(tmp_path: Path) -> None:
    path = log(tmp_path, PLAIN)
    with Path(path).open("a") as file:
        file.write("2 o step 1\n2 O unfin\n2 E KeyError: 'a \n2 E whole \n2 o ished\n2 e line'\n")
    error = read_error(path, str(tmp_path))
    assert error is not None
    assert (error["file"], error["line"], error["message"]) == ("model/net.py", 7, "'lr'")


@pytest.mark.parametrize("file", ["x" * 12_000, "a\0b", "/job/" + "x/" * 6_000])
@pytest.mark.parametrize("line", ["9" * 20, "9" * 5_000])
def test_fields_are_cut_to_the_servers_limits(tmp_path: Path, file: str, line: str) -> None:
    one = f'Traceback (most recent call last):\n  File "{file}", line {line}, in x\n    go()\n{"E" * 12_000}Error: x\n'
    path = log(tmp_path, one + MEANWHILE + one.replace("EE", "FF"))
    with Path(path).open("a") as stamped:
        stamped.write(f"{'9' * 5_000} e x\n")
    error = read_error(path, "/job")
    message = {**HEAD, "type": "rank_failed", **MESSAGES["rank_failed"], "error": error}
    assert message_schema.message(written(message))["error"] == error
    assert error is not None
    assert error["type"].startswith("EEE")


@pytest.mark.parametrize("megabytes", [0, 0.2, 2])
def test_only_the_end_of_a_long_log_is_read(tmp_path: Path, megabytes: float) -> None:
    noise = f"{'x' * 99}\n" * int(megabytes * 10_000)
    error = read_error(log(tmp_path, noise + PLAIN), str(tmp_path))
    assert error is not None
    assert error["file"] == "model/net.py"
    assert read_error(log(tmp_path, PLAIN + noise), str(tmp_path)) == (error if megabytes == 0 else None)


def test_stdout_is_searched_if_stderr_has_no_error(tmp_path: Path) -> None:
    error = read_error(log(tmp_path, PLAIN, "o"), str(tmp_path))
    assert error is not None
    assert error["type"] == "KeyError"


def test_no_log(tmp_path: Path) -> None:
    assert read_error(str(tmp_path / "none.log"), str(tmp_path)) is None


@pytest.mark.parametrize(("code", "is_read"), [(1, True), (3, True), (-2, True), (-6, True), (-9, False), (143, False)])
def test_a_signal_from_outside_is_no_exception(tmp_path: Path, code: int, is_read: bool) -> None:
    assert bool(find_exit_error(code, log(tmp_path, PLAIN), str(tmp_path))) is is_read


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (["usage: train.py [-h]", "train.py: error: unrecognized arguments: --lr"], 1),
        (["Error: no such option", "Try 'train --help'.", ""], 0),
        (["FATAL Flags parsing error:", "  Unknown command line flag 'x'", "Pass --help to see help."], 1),
        (["step 1", "step 2"], 1),
        (["step 13", "ganger: nothing was saved at step 13, an error on this rank"], 0),
        (["ganger: a report was dropped"], 0),
        (["╭─ Error ─────╮", "│ No such option: --lr │", "╰──────────────╯"], 1),
    ],
)
def test_the_most_telling_line(tail: list[str], says: int) -> None:
    assert most_telling_line(tail) == tail[says].strip(" │")
    assert most_telling_line([]) == ""
