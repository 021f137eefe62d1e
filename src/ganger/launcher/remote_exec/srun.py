"""`srun` in a batch script: starts the tasks of a step on the nodes of the job, each through the agent of its node.

Tasks run in the current directory with the variables that the script has set; the exit code is the highest of theirs.
The first task that fails ends the others, since ranks that wait for a lost one would wait for ever. A step takes the
nodes in order, and waits while other steps have what it needs.
"""

from __future__ import annotations

import fcntl
import getopt
import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

from ganger.launcher.remote_exec.agent_client import READ_BYTES, AgentError, connect, receive_challenge
from ganger.launcher.remote_exec.frames import EXIT, STDERR, STDIN, STDOUT, VERSION, frame, proof, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    Node = tuple[str, str, int]  # name, address, tasks that the job has there

USAGE = 1  # exit code of srun itself
BUSY_S = 0.2
MAX_DIGITS = 5  # a step has no more tasks
LAYOUT = ("N:nodes", "n:ntasks", ":ntasks-per-node", "w:nodelist", "x:exclude", "r:relative")
TASK = ("c:cpus-per-task", ":gpus-per-task", "D:chdir", ":export", "o:output", "e:error", "K:kill-on-bad-exit", ":mpi")
NO_EFFECT = (
    *(
        "G:gpus",
        ":gpus-per-node",
        ":gres",
        ":mem",
        ":mem-per-cpu",
        ":mem-per-gpu",
        "t:time",
        "J:job-name",
        "p:partition",
    ),
    *("A:account", "q:qos", "C:constraint", ":cpu-bind", ":cpu_bind", ":gpu-bind", ":mem-bind", ":hint", "W:wait"),
    *("m:distribution", ":accel-bind", ":threads-per-core", ":profile", ":open-mode", ":acctg-freq", ":comment"),
    *(":cpu-freq", ":gpu-freq", ":signal", "T:threads", ":network", "i:input", ":ntasks-per-gpu"),
    *(":cores-per-socket", ":sockets-per-node", ":ntasks-per-socket", ":jobid", ":container-image", ":priority"),
)
"""Options with a value that change nothing: the job has its resources, and what it gets of a node is not divided."""
FLAGS = (
    *("l:label", "u:unbuffered", "v:verbose", "Q:quiet", "k:no-kill", "X:disable-status", "E:preserve-env", ":exact"),
    *("O:overcommit", ":overlap", "s:oversubscribe", ":exclusive", ":contiguous", ":propagate", ":pty", ":multi-prog"),
)
REFUSED = {
    "pty": "a job has no terminal: ganger exec -it JOB -- bash, next to it",
    "multi-prog": "write one srun for each program, with & and wait, or roles in a job file",
}
OPTIONAL_VALUE = re.compile(r"(--(?:no-kill|propagate|exclusive))=.*|(--kill-on-bad-exit|-K)$")
WITH_VALUE = (*LAYOUT, *TASK, *NO_EFFECT)
SHORT_NAMES = {option[0]: option[2:] for option in (*WITH_VALUE, *FLAGS) if option[0] != ":"}
NOT_SHIPPED = re.compile(r"GANGER_.*|_|SHLVL|OLDPWD|PWD|HOSTNAME|PYTHONUNBUFFERED|BASH_FUNC_.*")
DEFAULT_MPI = ("none", "list")


class UsageError(Exception):
    """A step that cannot be started as it is written; the text is one sentence."""


def main(arguments: list[str]) -> int:
    """Run one step, given after `--srun`; return the highest exit code of its tasks."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # for the script: the launcher of each node tells its processes
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        options, command = parse(arguments[1:])
        step, placed = admit(options, job_nodes())
        return Step(options, command, placed, step).run()
    except (UsageError, OSError) as error:
        sys.stderr.write(f"srun: {error}\n")
        return USAGE


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options by their long names, and the command; raise UsageError."""
    short = "".join(f"{name}:" if f"{name}:{long}" in WITH_VALUE else name for name, long in SHORT_NAMES.items())
    long = [option[1:].lstrip(":") + "=" for option in WITH_VALUE] + [option[1:].lstrip(":") for option in FLAGS]
    words = [
        OPTIONAL_VALUE.sub(lambda match: match[1] or {"-K": "-K1"}.get(match[2], f"{match[2]}=1"), word)
        for word in arguments
    ]
    try:
        pairs, rest = getopt.getopt(words, short, long)
    except getopt.GetoptError as error:
        raise UsageError(f"{error.msg}: leave it out; ganger sets what a job has") from None
    options = {SHORT_NAMES.get(name[1:], name.lstrip("-")): value for name, value in pairs}
    refused = next((name for name in REFUSED if name in options), None)
    if refused is not None:
        raise UsageError(f"--{refused}: {REFUSED[refused]}")
    if not rest:
        raise UsageError("a command is missing after its options")
    if options.get("mpi", "none") not in DEFAULT_MPI:
        raise UsageError(f"--mpi={options['mpi']}: tasks find no PMI here: framework mpi starts them with mpirun")
    return options, arguments[len(arguments) - len(rest) :]


def job_nodes() -> list[Node]:
    """Return the nodes of the job in their order; raise UsageError."""
    directory = os.environ.get("GANGER_TASK_DIR", "")
    try:
        with open(os.path.join(directory, "hostfile"), encoding="utf-8") as file:
            slots = [line.split() for line in file if line.strip()]
        with open(os.path.join(directory, "agents.json"), encoding="utf-8") as file:
            agents = json.load(file)
        return [(name, str(agents[name][0]), int(count.partition("=")[2])) for name, count in slots]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"this process belongs to no job that can start tasks: {error}") from None


def layout(options: dict[str, str], nodes: list[Node]) -> list[Node]:
    """Return the nodes of the step with the number of its tasks on each; raise UsageError."""
    chosen = _chosen(options, nodes)
    total, per_node, number = (_number(options, name) for name in ("ntasks", "ntasks-per-node", "nodes"))
    if number and number > len(chosen):
        raise UsageError(f"--nodes={number}: the job has {len(chosen)} such nodes")
    slots = [count for _, _, count in chosen]
    if total is None:
        used = chosen[: number or len(chosen)]
        return [(name, address, per_node or count) for name, address, count in used]
    if number is None and per_node:
        number = -(-total // per_node)
    if number is None:  # as few as have room
        number = next((index for index in range(1, len(slots) + 1) if sum(slots[:index]) >= total), len(slots))
    number = min(number, total, len(chosen))
    room = [per_node or count for count in slots[:number]]
    if sum(room) < total:
        room = [-(-total // number)] * number
    counts: list[int] = []
    for index, count in enumerate(room):  # one at least for each node that comes after
        left = total - sum(counts)
        counts.append(min(count, left - (number - index - 1)))
    return [(name, address, count) for (name, address, _), count in zip(chosen, counts)]


def admit(options: dict[str, str], nodes: list[Node]) -> tuple[int, list[Node]]:
    """Return the number of this step and its nodes, once other steps leave room; raise UsageError.

    Every step of a job runs on this node: one that is over has no process.
    """
    path = os.path.join(os.environ["GANGER_TASK_DIR"], "steps.json")
    has_said = False
    while True:
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                state = json.loads(file.read())
            except ValueError:  # the first step, or the disk was full
                state = {"next": 0, "running": {}}
            running = {pid: tasks for pid, tasks in state["running"].items() if os.path.exists(f"/proc/{pid}")}
            is_shared = "overlap" in options or "overcommit" in options
            placed = room(options, nodes, [] if is_shared else list(running.values()))
            if placed is not None:
                running[str(os.getpid())] = {name: count for name, _, count in placed}
                file.truncate(0)
                json.dump({"next": state["next"] + 1, "running": running}, file)
                return int(state["next"]), placed
        if not has_said:
            sys.stderr.write("srun: the nodes are busy with other steps: waiting (--overlap: does not wait)\n")
            has_said = True
        time.sleep(BUSY_S)


def room(options: dict[str, str], nodes: list[Node], running: list[dict[str, int]]) -> list[Node] | None:
    """Return the nodes of a step beside the tasks of running ones; None if it has to wait; raise UsageError."""
    alone = layout(options, nodes)
    free = [(name, address, count - sum(tasks.get(name, 0) for tasks in running)) for name, address, count in nodes]
    if sum(count for _, _, count in alone) > sum(count for _, _, count in nodes):
        return alone  # it has more tasks than the job: they share what there is
    try:
        placed = layout(options, [node for node in free if node[2] > 0])
    except UsageError:
        return None
    left = {name: count for name, _, count in free}
    fits = len(placed) >= len(alone) and all(count <= left[name] for name, _, count in placed)
    return placed if fits and sum(node[2] for node in placed) == sum(node[2] for node in alone) else None


def _chosen(options: dict[str, str], nodes: list[Node]) -> list[Node]:
    """Return the nodes that the step may use: names and addresses both name one."""
    by_name: dict[str, Node] = {}
    for name, address, count in nodes:
        by_name.setdefault(address, (name, address, count))
    by_name.update({name: (name, address, count) for name, address, count in nodes})
    listed = {}
    for option in ("nodelist", "exclude"):
        names = [name for name in options.get(option, "").split(",") if name]
        missing = [name for name in names if name not in by_name]
        if missing and option == "nodelist":
            raise UsageError(
                f"--nodelist: {missing[0]} is no node of this job; it has {', '.join(n[0] for n in nodes)}"
            )
        listed[option] = [by_name[name] for name in names if name in by_name]
    first = _number(options, "relative", least=0) or 0
    chosen = [node for node in (listed["nodelist"] or nodes[first:]) if node not in listed["exclude"]]
    if not chosen:
        raise UsageError("no node of this job is left for it")
    return chosen


def _number(options: dict[str, str], name: str, least: int = 1) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    low, dash, high = text.partition("-")
    text = high if dash and low == high else text
    if not re.fullmatch(rf"[0-9]{{1,{MAX_DIGITS}}}", text) or int(text) < least:
        raise UsageError(f"--{name}={text}: write one whole number, {least} or more")
    return int(text)


class Step:
    """The tasks of one srun."""

    def __init__(self, options: dict[str, str], command: list[str], nodes: list[Node], number: int) -> None:
        self._options = options
        self._command = command
        self._nodes = nodes
        self._number = number
        self._variables = _variables(options.get("export", "ALL"))
        self._tasks = [(node, local) for node, (_, _, count) in enumerate(nodes) for local in range(count)]
        self._connections: list[socket.socket] = []
        self._codes = [1] * len(self._tasks)
        self._lock = threading.Lock()
        self._is_ending = False

    def run(self) -> int:
        """Start every task, pass on their output, and return the highest exit code."""
        threads = [threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in range(len(self._tasks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(self._codes)

    def _run(self, rank: int) -> None:
        name = self._nodes[self._tasks[rank][0]][0]
        try:
            output = _Output(self._options, self._names(rank), rank if "label" in self._options else None, self._lock)
            try:
                code = self._follow(name, self._shell_line(rank), output)
            finally:
                output.close()
        except (AgentError, OSError, ValueError, KeyError, TypeError) as error:
            code = 1
            if not self._is_ending:
                self._say(f"srun: error: {name}: task {rank}: {str(error) or 'the node closed the connection'}\n")
        with self._lock:
            self._codes[rank] = 0 if code and self._is_ending else code
            if not code or self._is_ending:
                return
            self._is_ending = self._options.get("kill-on-bad-exit", "1") != "0"
            connections = self._connections if self._is_ending else []
        self._say(f"srun: error: {name}: task {rank}: Exited with exit code {code}\n")
        for connection in connections:
            with suppress(OSError):  # its task has ended
                connection.shutdown(socket.SHUT_RDWR)

    def _say(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(text)
            sys.stderr.flush()

    def _follow(self, name: str, line: str, output: _Output) -> int:
        """Run a shell line on a node and return its exit code."""
        connection, token = connect(name)
        with connection:
            challenge, buffer = receive_challenge(connection)
            connection.settimeout(None)
            answer = {"v": VERSION, "proof": proof(token, challenge, line), "command": line}
            connection.sendall(json.dumps(answer).encode() + b"\n" + frame(STDIN, b""))
            with self._lock:
                if self._is_ending:
                    return 1
                self._connections.append(connection)
            while True:
                data = connection.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError
                frames, buffer = split(buffer + data)
                for kind, payload in frames:
                    if kind == EXIT:
                        return int(payload) & 255
                    output.write(kind, payload)

    def _shell_line(self, rank: int) -> str:
        _, local = self._tasks[rank]
        variables = {**self._variables, **self._task_variables(rank)}
        parts = [f"cd -- {shlex.quote(self._options.get('chdir') or os.getcwd())}"]
        parts += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        if per_task := _number(self._options, "gpus-per-task"):
            first = local * per_task + 1
            devices = f'$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f{first}-{first + per_task - 1})'
            parts.append(f'[ -z "$CUDA_VISIBLE_DEVICES" ] || export CUDA_VISIBLE_DEVICES="{devices}"')
        return " && ".join(parts) + f" && exec {' '.join(map(shlex.quote, self._command))}"

    def _task_variables(self, rank: int) -> dict[str, str]:
        node, local = self._tasks[rank]
        addresses = ",".join(address for _, address, _ in self._nodes)
        counts = ",".join(str(count) for _, _, count in self._nodes)
        cpus = {} if "cpus-per-task" not in self._options else {"SLURM_CPUS_PER_TASK": self._options["cpus-per-task"]}
        return {
            **cpus,
            **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(self._number)),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(len(self._tasks))),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(len(self._nodes))),
            **dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), addresses),
            **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), counts),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": self._nodes[node][0],
        }

    def _names(self, rank: int) -> dict[str, str]:
        """Return what the signs of a file's name stand for."""
        node, _ = self._tasks[rank]
        job = os.environ.get("SLURM_JOB_ID", "")
        return {
            "j": job,
            "J": f"{job}.{self._number}",
            "s": str(self._number),
            "t": str(rank),
            "n": str(node),
            "N": self._nodes[node][0],
            "x": os.environ.get("SLURM_JOB_NAME", ""),
            "A": os.environ.get("SLURM_ARRAY_JOB_ID", job),
            "a": os.environ.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        }


class _Output:
    """The output of one task, in whole lines: to ours, or to the files that options name."""

    def __init__(self, options: dict[str, str], names: dict[str, str], label: int | None, lock: threading.Lock) -> None:
        self._prefix = b"" if label is None else f"{label}: ".encode()
        self._lock = lock
        self._lines = {STDOUT: b"", STDERR: b""}
        stdout = _open(options.get("output"), names, 1)
        self._files = {STDOUT: stdout, STDERR: _open(options.get("error"), names, stdout if stdout != 1 else 2)}

    def write(self, kind: bytes, data: bytes) -> None:
        lines = self._lines[kind] + data
        end = max(lines.rfind(b"\n"), lines.rfind(b"\r")) + 1
        self._lines[kind] = lines[end:]
        self._put(kind, lines[:end])

    def close(self) -> None:
        for kind, rest in self._lines.items():
            self._put(kind, rest + b"\n" if rest else b"")

    def _put(self, kind: bytes, data: bytes) -> None:
        if self._prefix:
            data = b"".join(self._prefix + line for line in data.splitlines(True))
        with self._lock:
            while data:
                data = data[os.write(self._files[kind], data) :]


def _open(pattern: str | None, names: dict[str, str], otherwise: int) -> int:
    """Return the descriptor of the file that a pattern names, `otherwise` without one."""
    if pattern is None or (pattern in ("all", "none") and otherwise in (1, 2)):
        return otherwise
    path = re.sub(r"%0*\d*([A-Za-z%])", lambda match: names.get(match[1], match[0]), pattern)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if re.search(r"%\d*t", pattern) else 0)
    return os.open(path, flags, 0o666)


def _variables(export: str) -> dict[str, str]:
    """Return the variables that tasks get from the script: those that it has set, and those of the job."""
    names, values = [], {}
    for item in export.split(","):
        name, equals, value = item.partition("=")
        if equals:
            values[name] = value
        else:
            names.append(name)
    started = _started_with()
    shipped = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("SLURM_")
        or name in ("MASTER_ADDR", "MASTER_PORT")
        or (
            not NOT_SHIPPED.fullmatch(name)
            and re.fullmatch(r"[A-Za-z_]\w*", name)
            and started.get(name) != value
            and ("ALL" in names or name in names)
        )
    }
    return {**shipped, **values}


def _started_with() -> dict[str, str]:
    """Return the variables that the script was started with: other nodes have them too, with values of their own."""
    try:
        with open(f"/proc/{int(os.environ['SLURM_TASK_PID'])}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
    except (OSError, KeyError, ValueError):
        return {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
