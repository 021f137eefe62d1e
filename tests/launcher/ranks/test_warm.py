"""Warm ranks: forked from a process that has imported the script's modules, and else like ranks that are started."""

import os
import signal
import socket
import sys
import threading
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.ranks import zygote as forking
from tests.launcher.harness import Server, Task, is_alive
from tests.waiting import wait_until

MODULE = "xmlrpc.client"
"""An installed module that nothing else loads."""
TELLS = f"import sys\nprint('forked' if '{MODULE}' in sys.modules else 'started')\nimport {MODULE}\n"
UNTIL_GO = f"{TELLS}import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
DESCRIBES_ITSELF = """\
import os, resource, signal, sys, threading, xmlrpc.client, __main__
print(sys.argv, sys.path, sys.orig_argv[1:], __main__ is sys.modules["__main__"])
print(__name__, __file__, __spec__, __package__, type(__loader__), type(__builtins__))
print(os.getcwd(), os.getpgrp() == os.getsid(0) == os.getpid(), os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE))
print([signal.getsignal(number) for number in (1, 2, 3, 13, 15)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(threading.active_count(), sorted(os.listdir("/proc/self/fd"))[:4], os.readlink("/proc/self/fd/0"))
print(open("/proc/self/cmdline").read().strip(chr(0)).split(chr(0))[1:])
shown = dict(pair.split("=", 1) for pair in open("/proc/self/environ").read().split(chr(0)) if pair)
print({name: value.replace(os.environ["GANGER_TASK"], "TASK") for name, value in os.environ.items()} == shown)
print({name: shown[name] for name in sorted(shown) if not name.startswith("GANGER_TASK")}, shown["GANGER_TASK"][:-1])
"""
RAISES = """\
def step():
    raise ValueError('bad')
try:
    step()
except ValueError as error:
    raise KeyError('x') from error
"""
HOOKED = """\
import sys
sys.excepthook = lambda kind, value, frames: print(kind, frames.tb_frame.f_code.co_filename)
1 / 0
"""
ENDS_LATE = """\
import atexit, threading
atexit.register(print, 'last')
threading.Timer(0.05, print, ['timer']).start()
print('first')
"""
SPAWNS = """\
import multiprocessing
def double(number):
    return 2 * number
if __name__ == '__main__':
    print(multiprocessing.get_context('spawn').Pool(1).map(double, [4]))
"""
SCRIPTS = {
    "itself": DESCRIBES_ITSELF,
    "code": "import sys\nprint('out'); print('err', file=sys.stderr); sys.exit(7)",
    "text": "import sys\nsys.exit('nothing to train')",
    "error": RAISES,
    "syntax": "print('never'\n",
    "hook": HOOKED,
    "interrupt": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "abort": "import os\nos.abort()",
    "late": ENDS_LATE,
    "spawn": SPAWNS,
}

IMPATIENT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from ganger.launcher import main, runtime
from ganger.launcher.ranks import warm_ranks
{changed} = 1.0
sys.exit(main.main(sys.argv))
"""

Runs = Callable[..., None]


@pytest.fixture
def runs(task: Task, server: Server) -> Runs:
    """Return a function that runs a script as one generation, the launcher's first or its next one."""

    def run(script: str, *program: str, generation: int = 1, words: int = 1, **fields: Any) -> None:
        launcher = fields.pop("launcher", [task.archive])
        (task.work / "train.py").write_text(script)
        (task.work / "go").unlink(missing_ok=True)
        argv = [fields.pop("python", sys.executable), *(program or ("train.py",))]
        task.plan(argv, generation, warm={"words": words, "without": ["WORLD_SIZE"]}, **fields)
        if generation == 1:
            task.start(program=launcher)
        else:
            server.send("run", generation=generation)

    return run


def zygotes(task: Task) -> list[int]:
    """Return the processes that ranks are forked from: those of the task that belong to no generation."""
    mark = os.fsencode(f"GANGER_TASK_DIR={task.path}/zygote")
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and mark in environment(path)]


def environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def output(task: Task, server: Server, generation: int = 1, rank: int = 0) -> list[str]:
    """Return what a rank has written until its end."""
    server.wait("cleared", generation=generation)
    return [text for _, _, text in task.records(f"rank-{rank}.log", generation)]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_forked_rank_is_like_a_started_one(task: Task, server: Server, runs: Runs, script: str) -> None:
    runs(f"import {MODULE}")
    server.wait("cleared")
    for generation, words in ((2, 1), (3, 0)):
        runs(script, "train.py", "--lr", "3e-4", generation=generation, words=words)
        server.wait("cleared", generation=generation)
    assert output(task, server, 2) == output(task, server, 3)
    forked, started = (task.json("rank-0.exit", generation) for generation in (2, 3))
    assert {**forked, "at_ms": 0, "pid": 0} == {**started, "at_ms": 0, "pid": 0}


def test_the_next_generation_is_forked_from_the_same_zygote(task: Task, server: Server, runs: Runs) -> None:
    runs(UNTIL_GO, ranks=2)
    first = task.pids()
    (zygote,) = zygotes(task)
    os.kill(first["1"], signal.SIGKILL)
    assert server.wait("rank_failed")["signal"] == signal.SIGKILL
    server.stop(1, kill_after_ms=0)
    server.wait("cleared")
    assert not any(map(is_alive, first.values()))

    runs("print('edited')\n" + UNTIL_GO, generation=2, ranks=2)
    second = task.pids(2)
    assert zygotes(task) == [zygote]
    assert zygote not in (*first.values(), *second.values())
    (task.work / "go").touch()
    assert output(task, server, 2) == output(task, server, 2, rank=1) == ["edited", "forked"]
    server.send("leave")
    task.launchers[0].wait()
    wait_until(lambda: not is_alive(zygote), "the zygote ends with its launcher")


def test_a_killed_zygote_is_replaced(task: Task, server: Server, runs: Runs) -> None:
    runs(UNTIL_GO)
    rank = task.pids()["0"]
    (zygote,) = zygotes(task)
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: zygotes(task) not in ([], [zygote]), "another one is started")
    assert is_alive(rank)
    (task.work / "go").touch()
    assert output(task, server) == ["forked"]
    runs(TELLS, generation=2)
    assert output(task, server, 2) == ["forked"]


def test_a_zygote_that_does_not_answer_forks_no_second_rank(task: Task, server: Server, runs: Runs) -> None:
    runs(TELLS, launcher=["-c", IMPATIENT.format(changed="warm_ranks.FORK_LIMIT_S"), str(task.archive)])
    server.wait("cleared")
    (zygote,) = zygotes(task)
    os.kill(zygote, signal.SIGSTOP)
    runs(TELLS, generation=2)
    remark, said = output(task, server, 2)
    assert remark.startswith("ganger: warm: the ranks are started without a zygote: the zygote did not fork")
    assert said == "started"
    assert not is_alive(zygote)


def test_all_end_with_a_killed_launcher(task: Task, server: Server, runs: Runs) -> None:
    runs(UNTIL_GO, ranks=2)
    pids = [*task.pids().values(), *zygotes(task)]
    task.launchers[0].kill()
    task.wait_until_unlocked()
    wait_until(lambda: not any(map(is_alive, pids)), "ranks and zygote are gone")


def test_the_zygote_ends_where_no_rank_runs_for_a_while(task: Task, server: Server, runs: Runs) -> None:
    runs(TELLS, launcher=["-c", IMPATIENT.format(changed="runtime.ZYGOTE_IDLE_S"), str(task.archive)])
    assert output(task, server) == ["forked"]
    wait_until(lambda: not zygotes(task), "it ends")
    runs(TELLS, generation=2)
    assert output(task, server, 2) == ["forked"]


def test_a_stop_while_modules_are_imported(task: Task, server: Server, runs: Runs) -> None:
    os.mkfifo(task.work / "slow.py")  # the job's script: to be read for its imports, which blocks the zygote
    runs("", "slow.py")
    wait_until(lambda: zygotes(task), "the zygote is started")
    server.stop(1)
    server.wait("cleared")
    assert "started" not in server.kinds()


OBSTACLES = {
    "import ganger_has_no_such_module": "importing ganger_has_no_such_module failed: ModuleNotFoundError",
    "import threaded": "the imported modules have started threads, of which 1 cannot be forked",
    "import forking": "an imported module has started a process",
    "import gpu": "importing gpu initialised CUDA",
    "import reaching": "an installed module imports model, which is code of the job",
    "import json": "the job has a module json of its own, and so has Python",
}
INSTALLED = {
    "threaded": "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()",
    "forking": "import subprocess\nchild = subprocess.Popen(['sleep', '1'])",
    "gpu": "import sys, types\ncuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
    "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)",
    "reaching": "import model",
}


@pytest.mark.parametrize("script", OBSTACLES)
def test_ranks_that_cannot_be_forked_are_started(
    task: Task, server: Server, runs: Runs, script: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    for name, text in INSTALLED.items():
        (site / f"{name}.py").write_text(text)
    (task.work / ("json.py" if "json" in script else "model.py")).touch()
    python = str(tmp_path / "venv" / "bin" / "python")
    for generation in (1, 2):
        runs(f"{TELLS}{script}", generation=generation, ranks=2, python=python)
        lines = output(task, server, generation)
        assert lines[0].startswith(f"ganger: warm: the ranks are started without a zygote: {OBSTACLES[script]}")
        assert lines[1] == "started"
        assert output(task, server, generation, rank=1)[0] == "started", "it is said once"
    assert not zygotes(task)


def test_ranks_wait_until_the_first_one_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        forking._await_first_rank({**meeting, "RANK": "1"})  # refused: it does not wait for ever
        monkeypatch.setattr(forking, "FIRST_RANK_S", 60.0)
        threading.Timer(0.05, first.listen).start()
        forking._await_first_rank({**meeting, "RANK": "1"})
        first.setblocking(False)
        first.accept()[0].close()
        for alone in ({**meeting, "RANK": "0"}, {"RANK": "1"}, {**meeting, "MASTER_PORT": "x", "RANK": "1"}):
            forking._await_first_rank(alone)
        with pytest.raises(BlockingIOError):
            first.accept()
