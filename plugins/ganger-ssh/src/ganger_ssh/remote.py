"""The program that runs on a host: `python3 -I -S -c PROGRAM ROOT`, with a request and its answer as JSON.

Standard library only, for Python 3.8. Paths of a request are below ROOT, this server's own directory on the host.
"""

import base64
import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

TERM_GRACE_S = 10.0  # for a launcher to end its ranks
MAX_PULLED_BYTES = 8 << 20


def install(root: str, launcher: str, content: str) -> object:
    """Create ROOT, private to this user, with the launcher; remove the socket of an earlier connection."""
    os.makedirs(root, 0o700, exist_ok=True)
    status = os.lstat(root)
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or os.path.islink(root):
        raise OSError(f"{root} is not a private directory of this user")
    if os.path.lexists("server.sock"):
        os.unlink("server.sock")
    _write(launcher, content)
    return os.path.realpath(root)


def start(root: str, task: str, output: str, command: dict[str, Any]) -> object:
    """Start a launcher, which outlives the connection, unless it was started before."""
    if not os.path.exists(f"{task}/lock"):
        os.makedirs(f"{task}/work", exist_ok=True)
        os.makedirs(output, exist_ok=True)
        for name, content in command["files"].items():
            _write(f"{task}/{name}", content)
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with open(f"{task}/launcher.log", "ab") as log:
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", *command["argv"]],
                cwd=command["cwd"] or f"{task}/work",
                env={**environment, **command["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not os.path.exists(f"{task}/lock"):
            if launcher.poll() is not None:
                raise OSError(f"the launcher ended: {_last_line(task)}")
            time.sleep(0.02)
    return None


def state(root: str, task: str) -> object:
    """Return if a launcher was started, if something of it runs, and its last words."""
    return {"started": os.path.exists(f"{task}/lock"), "runs": _runs(task), "last_line": _last_line(task)}


def end(root: str, task: str, launcher: str) -> object:
    """End the launchers of tasks, with their ranks, and wait until nothing of them is left. task: a pattern."""
    sys.path.insert(0, f"{root}/{launcher}")
    from ganger.launcher.health.reaper import clear_leftovers
    from ganger.launcher.task_directory import TaskDirectory

    kill_at = time.monotonic() + TERM_GRACE_S
    tasks = glob.glob(task, recursive=True)
    number: int = signal.SIGTERM
    while running := [path for path in tasks if _runs(path)]:
        for path in running:
            with open(f"{path}/launcher.json", encoding="utf-8") as file:
                process = json.load(file)
            if _start_ticks(process["pid"]) == process["start_ticks"]:
                os.kill(process["pid"], number)
        number = signal.SIGKILL if time.monotonic() > kill_at else 0
        time.sleep(0.05)
    for path in tasks:  # their reapers may have been killed too
        clear_leftovers(TaskDirectory(path))
    return None


def pull(root: str, folders: dict[str, dict[str, int]]) -> object:
    """Return what was added to the files of these folders, of which the sizes are known, up to a limit."""
    pieces, budget = [], MAX_PULLED_BYTES
    for folder, sizes in folders.items():
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            size, known = entry.stat(follow_symlinks=False).st_size, sizes.get(entry.name, -1)
            if entry.is_file(follow_symlinks=False) and size != known and budget > 0:
                offset = known if 0 <= known < size else 0
                with open(entry.path, "rb") as file:
                    file.seek(offset)
                    data = file.read(budget)
                budget -= len(data) + 1
                pieces.append((folder, entry.name, offset, base64.b64encode(data).decode()))
    return {"pieces": pieces, "has_more": budget <= 0}


def remove(root: str, job: str) -> object:
    """Delete the files of a job."""
    shutil.rmtree(job, ignore_errors=True)
    return None


def _last_line(task: str) -> str:
    if not os.path.exists(f"{task}/launcher.log"):
        return ""
    with open(f"{task}/launcher.log", encoding="utf-8", errors="replace") as log:
        return "".join(log.read()[-2000:].strip().split("\n")[-1:])


def _runs(task: str) -> bool:
    """Return if a launcher or its reaper holds the lock: it is free when nothing of them and their ranks is left."""
    if not os.path.exists(f"{task}/lock"):
        return False
    with open(f"{task}/lock", "rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start_ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1


def _write(path: str, content: str) -> None:
    with open(f"{path}.tmp", "wb") as file:
        file.write(base64.b64decode(content))
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    os.umask(0o077)
    request, directory = json.load(sys.stdin), os.path.expanduser(sys.argv[1])
    os.makedirs(directory, exist_ok=True)
    os.chdir(directory)
    verbs = {verb.__name__: verb for verb in (install, start, state, end, pull, remove)}
    json.dump(verbs[request.pop("verb")](directory, **request), sys.stdout)
