"""The program that runs on a host, with Python 3.8 and the launcher's zipapp: requests and answers are JSON."""

import glob
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


def start(task: str, files: "dict[str, str]", launcher: "dict[str, Any]") -> None:
    """Start a launcher, by the arguments of Popen; it outlives the connection."""
    for name, text in files.items():
        with open(f"{task}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    launcher["env"].update({name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ})
    with open(f"{task}/launcher.log", "ab") as log:
        process = subprocess.Popen(**launcher, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not os.path.exists(f"{task}/lock"):
        if process.poll() is not None:
            raise OSError(f"the launcher ended: {state(task)['last_line']}")
        time.sleep(0.02)


def state(task: str) -> "dict[str, Any]":
    """Return if a launcher was started, if something of it runs, and its last words. The task's directory is made."""
    os.makedirs(f"{task}/work", exist_ok=True)
    tail = subprocess.run(["tail", "-n1", f"{task}/launcher.log"], check=False, stdout=subprocess.PIPE).stdout
    last_line = tail[-1000:].decode(errors="replace").strip()
    return {"started": os.path.exists(f"{task}/lock"), "runs": _runs(task), "last_line": last_line}


def end(tasks: str) -> None:
    """End the launchers of tasks, a pattern, with their ranks, and wait until nothing of them is left."""
    from ganger.launcher.health.procfs import is_running
    from ganger.launcher.health.reaper import clear_leftovers
    from ganger.launcher.task_directory import TaskDirectory

    kill_at, number = time.monotonic() + 10.0, int(signal.SIGTERM)
    paths = glob.glob(tasks, recursive=True)
    while running := [path for path in paths if _runs(path)]:
        for path in running:
            with open(f"{path}/launcher.json", encoding="utf-8") as file:
                process = json.load(file)
            if is_running(process["pid"], process["start_ticks"]):
                os.kill(process["pid"], number)
        number = int(signal.SIGKILL) if time.monotonic() > kill_at else 0
        time.sleep(0.05)
    for path in paths:  # their reapers may have been killed too
        clear_leftovers(TaskDirectory(path))


def _runs(task: str) -> bool:
    """Return if a launcher or its reaper holds the lock: it is free when nothing of them and their ranks is left."""
    return os.path.exists(f"{task}/lock") and subprocess.call(["flock", "-n", f"{task}/lock", "true"]) == 1


if __name__ == "__main__":
    os.umask(0o077)
    os.chdir(sys.argv[1])
    sys.path.insert(0, f"{sys.argv[1]}/{sys.argv[2]}")
    request = json.load(sys.stdin)
    verbs: "dict[str, Any]" = {"start": start, "state": state, "end": end}
    json.dump(verbs[request.pop("verb")](**request), sys.stdout)
