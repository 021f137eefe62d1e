"""srun in a user's command: it is removed, and its options become keys of the job.

The command that it would start runs in each rank, with the SLURM_ variables that scripts read. In a script of several
lines, or with several sruns, each line would have ranks of its own: such a command stays as it is.
"""

import getopt
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, NoReturn

from ganger.framework_api.launcher_command import find_call, parse_positive
from ganger.framework_api.rank_environment import PlacedGang, thread_count
from ganger.model.units import SECOND_MS, parse_duration_ms

_TAKEN: Final = (
    *("N:nodes", "n:ntasks", ":ntasks-per-node", "c:cpus-per-task", "G:gpus", ":gpus-per-node", ":gpus-per-task"),
    *(":gres", ":mem", "t:time", "J:job-name", "D:chdir", ":export", ":mpi"),
)
"""Options with a value that become keys of the job; before the colon their short form."""
_WITHOUT_EFFECT: Final = (
    *(":cpu-bind", ":gpu-bind", ":mem-bind", ":hint", "m:distribution", ":accel-bind", "W:wait", ":threads-per-core"),
    *(":profile", ":open-mode", ":acctg-freq", "o:output", "e:error", ":comment", ":cpu-freq"),
)
"""Options with a value that change nothing here: ganger keeps the output of each rank, and sets what is bound."""
_FLAGS: Final = (
    *("l:label", "u:unbuffered", "v:verbose", "Q:quiet", "K:kill-on-bad-exit", "k:no-kill", "X:disable-status"),
    *("E:preserve-env", ":exact", "O:overcommit", ":propagate", ":overlap"),
)
"""Options without a value that change nothing here."""
_REFUSED: Final = {
    "p:partition": "--queue NAME",
    "A:account": "--queue NAME",
    "q:qos": "--queue NAME, or --priority high",
    "w:nodelist": "--nodelist n1,n2",
    "x:exclude": "--nodelist with the nodes that the job may use",
    "C:constraint": "--gpu H100:8, or placement.node_selector in a job file",
    "d:dependency": "--after JOB",
    ":switches": "--topology LEVEL --mode required",
    ":mem-per-cpu": "--memory 64Gi, the memory of a node",
    ":mem-per-gpu": "--memory 64Gi, the memory of a node",
    ":ntasks-per-gpu": "--nproc-per-node N",
    ":time-min": "--time-min 1h",
    ":priority": "--priority high",
    ":signal": "checkpoint: {signal: SIGUSR1, grace: 120s} in a job file",
    ":jobid": "ganger exec JOB -- COMMAND, which runs next to a rank",
    ":het-group": "roles in a job file",
    "b:begin": "ganger submit at that time",
    "i:input": "sh -c 'COMMAND < FILE'",
    "r:relative": "roles in a job file",
    ":reservation": "--queue NAME",
}
"""Options with a value that would change the job, but stand for no single key -> what to write."""
_REFUSED_FLAGS: Final = {
    ":exclusive": "placement: {sharing: exclusive} in a job file",
    ":multi-prog": "roles in a job file, each with its own command",
    ":pty": "ganger exec -it JOB -- bash, next to a rank",
    "I:immediate": "--queue-time 1m",
    ":nice": "--priority low",
    "H:hold": "ganger submit, and then ganger suspend JOB",
    ":test-only": "--dry-run",
}
_OPTIONAL_VALUE: Final = re.compile(
    r"(--(?:kill-on-bad-exit|no-kill|propagate|exclusive|immediate|nice))=.*|(-[KkI])\d+"
)
_WITH_VALUE: Final = (*_TAKEN, *_WITHOUT_EFFECT, *_REFUSED)
_ALL: Final = (*_WITH_VALUE, *_FLAGS, *_REFUSED_FLAGS)
_LONG_NAMES: Final = {f"-{option[0]}": option[2:] for option in _ALL if option[0] != ":"}
_SHORT: Final = "".join(option[0] + (":" if option in _WITH_VALUE else "") for option in _ALL if option[0] != ":")
_LONG: Final = [option.partition(":")[2] + ("=" if option in _WITH_VALUE else "") for option in _ALL]
_REMEDIES: Final = {option.partition(":")[2]: remedy for option, remedy in (_REFUSED | _REFUSED_FLAGS).items()}
_GPUS: Final = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)")
_MEMORY: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_UNLIMITED: Final = ("0", "UNLIMITED", "INFINITE")
_IN_DIRECTORY: Final = 'cd -- "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Srun:
    """A srun that starts the ranks of a job.

    Attributes:
        command: The command without it.
        options: The values of its options, by their long names.
        error: A sentence about an option that cannot become part of the job; empty without one.
    """

    command: tuple[str, ...]
    options: Mapping[str, str]
    error: str = ""

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The options that change nothing, in order."""
        names = [option.partition(":")[2] for option in _WITHOUT_EFFECT]
        return tuple(name for name in self.options if name in names)

    @property
    def starts_mpi(self) -> bool:
        """True if the processes ask srun for their rank, through a library of MPI."""
        return self.options.get("mpi", "none") not in ("none", "list")

    def in_directory(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a rank, in the directory that --chdir names."""
        directory = self.options.get("chdir")
        return argv if directory is None else ("/bin/sh", "-c", _IN_DIRECTORY, directory, *argv)


def find_srun(argv: tuple[str, ...]) -> Srun | None:
    """Return the srun that starts the whole command; None without one, and for scripts."""
    call = find_call(argv, ("srun",))
    if call is None or (call.spans and "\n" in argv[-1].replace("\\\n", "").strip()):
        return None
    words = [_OPTIONAL_VALUE.sub(r"\1\2", word.replace('"', "").replace("'", "")) for word in call.rest]
    try:
        options, rest = getopt.getopt(words, _SHORT, _LONG)
    except getopt.GetoptError as error:
        return Srun(argv, {}, f"srun: {error.msg}: write an option of ganger before the command, or leave it out")
    command = call.replace_launcher((), len(words) - len(rest))
    if find_call(command, ("srun",)) is not None:
        return None
    named = {_LONG_NAMES.get(name, name[2:]): value for name, value in options}
    return Srun(command, named, _error_in(named) or ("" if rest else "srun: a command is missing after its options"))


def job_keys(srun: Srun, data: Mapping[str, Any], *, has_launcher: bool) -> dict[str, Any]:
    """Return the keys of a job that the options stand for.

    data: the keys that the user has written. has_launcher: the command starts a launcher, which has the say over the
    processes of a node. Raise ValueError with a sentence for a value that cannot be taken.
    """
    keys = job_keys_of_options(srun.options, data)
    keys |= {"nproc_per_node": None} if has_launcher else {}
    keys["name"] = srun.options.get("job-name")
    keys["framework"] = "mpi" if srun.starts_mpi and not has_launcher else None
    return {name: value for name, value in keys.items() if value}


def job_keys_of_options(options: Mapping[str, str], data: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the keys of a job that options of srun and sbatch stand for; raise ValueError as `job_keys` does."""
    nodes, tasks = _grid(options, data)
    keys: dict[str, Any] = {"nodes": nodes, "nproc_per_node": tasks}
    number = nodes or _written(data, "nodes") or 1
    tasks_there = _written(data, "nproc_per_node") or tasks or 1
    cpus = _number(options, "cpus-per-task")
    keys["resources"] = _given(
        gpu=_gpus(options, number, tasks_there),
        cpu=cpus and cpus * tasks_there,
        memory=_memory(options.get("mem")),
    )
    keys["limits"] = _given(time=_time(options.get("time")))
    keys["env"] = _variables(options.get("export", ""))
    return {name: value for name, value in keys.items() if value}


def srun_environment(placed: PlacedGang, rank: int, per: str) -> dict[str, str]:
    """Return the variables that srun gives its tasks: the processes that ganger starts.

    There are none under `mpi`, whose mpirun would take them for an allocation of Slurm.
    """
    if per == "gang":
        return {}
    started = placed.started_by(per)
    node = placed.hosts[placed.host_rank(rank)]
    tasks = [sum(task in host.ranks for task in started) for host in placed.hosts]
    addresses = ",".join(host.address for host in placed.hosts)
    job = str(_numeric_id(placed.job_uid))
    local = [task for task in started if task in node.ranks]
    environment = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), job),
        "SLURM_JOB_NAME": placed.job_name,
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(placed.hosts))),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), addresses),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(len(started))),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), _repeated(tasks)),
        "SLURM_PROCID": str(started.index(rank)),
        "SLURM_LOCALID": str(local.index(rank)),
        "SLURM_NODEID": str(placed.host_rank(rank)),
        "SLURMD_NODENAME": node.name,
        "SLURM_LAUNCH_NODE_IPADDR": placed.host,
        "SLURM_CPUS_PER_TASK": str(thread_count(placed, rank)),
        "SLURM_RESTART_COUNT": str(placed.generation - 1),
        # A batch script would have exported them.
        "MASTER_ADDR": placed.host,
        "MASTER_PORT": str(placed.port),
    }
    if placed.array is not None:
        array = str(_numeric_id(placed.array))
        environment |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": str(placed.index)}
    if len(set(tasks)) == 1:
        environment["SLURM_NTASKS_PER_NODE"] = str(tasks[0])
    if node.devices:
        environment["SLURM_GPUS_ON_NODE"] = str(len(node.devices))
    return environment


def _numeric_id(text: str) -> int:
    """Return a number like an id of Slurm: scripts compute ports from it."""
    return 10_000_000 + zlib.crc32(text.encode()) % 50_000_000


def _error_in(options: Mapping[str, str]) -> str:
    for name, value in options.items():
        if name in _REMEDIES:
            return f"srun --{name} is not taken over: write {_REMEDIES[name]}"
        if ("$" in value or "`" in value) and name not in ("export", "chdir", "output", "error"):
            return f"srun --{name}={value}: the shell expands {value} only in the job: write the value itself"
    return ""


def _grid(options: Mapping[str, str], data: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of nodes, and of tasks on each."""
    nodes, tasks, per_node = (_number(options, name) for name in ("nodes", "ntasks", "ntasks-per-node"))
    if tasks and per_node is None:
        per_node = _divide(tasks, nodes or _written(data, "nodes") or 1, "tasks", "nodes")
    elif tasks and nodes is None and per_node:
        nodes = _divide(tasks, per_node, "tasks", "tasks on each node")
    elif tasks and nodes and per_node and tasks != nodes * per_node:
        _refuse(f"--ntasks={tasks} is not {nodes} nodes with {per_node} tasks each: leave --ntasks out")
    has_size = any(name in options for name in ("nodes", "cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task"))
    return nodes, per_node or (1 if has_size else None)


def _divide(total: int, parts: int, what: str, of: str) -> int:
    if total % parts:
        _refuse(f"{total} {what} do not divide by {parts} {of}: each node of a job has the same number of them")
    return total // parts


def _written(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    return parse_positive(text) or _refuse(f"--{name}={text}: write one whole number, 1 or more")


def _gpus(options: Mapping[str, str], nodes: int, tasks: int) -> str | int | None:
    """Return the GPUs of a node, as `resources.gpu` takes them."""
    texts = {name: options[name] for name in ("gpus-per-node", "gpus", "gpus-per-task") if name in options}
    if "gres" in options:
        kind, _, amount = options["gres"].partition(":")
        if kind != "gpu":
            _refuse(f"--gres={options['gres']}: ganger has no such resource: write --gpu N, or --gpu-milli 500")
        texts["gpus-per-node"] = amount or "1"
    for name, text in texts.items():
        match = _GPUS.fullmatch(text) or _GPUS.fullmatch(f"{text}:1")
        if match is None:
            _refuse(f"--{name}={text}: write a number of GPUs, as in 8 or h100:8")
        count = int(match[2]) * (tasks if name == "gpus-per-task" else 1)
        count = _divide(count, nodes, "GPUs", "nodes") if name == "gpus" else count
        return f"{match[1].upper()}:{count}" if match[1] else count
    return None


def _memory(text: str | None) -> str | None:
    """Return the memory of a node: MB without a unit, and units of 1024; all that there is needs no request."""
    if text is None or text == "0":
        return None
    match = _MEMORY.fullmatch(text)
    return f"{match[1]}{(match[2] or 'M').upper()}i" if match else _refuse(f"--mem={text}: write a size, as in 64G")


def memory_mib(text: str, option: str) -> int:
    """Return a size as options of Slurm have it, rounded up to MiB."""
    match = _MEMORY.fullmatch(text) or _refuse(f"--{option}={text}: write a size, as in 4G")
    kib: int = int(match[1]) * 1024 ** "KMGT".index((match[2] or "M").upper())
    return -(-kib // 1024)


def _time(text: str | None) -> str | None:
    """Return the limit: minutes without a unit, MINUTES:SECONDS, and the forms that ganger has too."""
    if text is None or text.upper() in _UNLIMITED:
        return None
    minutes, colon, seconds = text.partition(":")
    if minutes.isdigit() and ":" not in seconds and (seconds.isdigit() or not colon):
        return f"{int(minutes) * 60 + int(seconds or 0)}s"
    try:
        return f"{parse_duration_ms(text) // SECOND_MS}s"
    except ValueError:
        _refuse(f"--time={text}: write minutes, H:MM:SS or D-HH:MM:SS")


def _variables(text: str) -> dict[str, str]:
    variables = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if equals:
            variables[name] = value
        elif name not in ("ALL", "NONE", "NIL"):
            _refuse(f"--export={text}: the value of {name} is not here: write --env {name} before the command")
    return variables


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _repeated(tasks: list[int]) -> str:
    """Return the tasks of each node as Slurm writes them: `2(x3),1`."""
    runs = [(count, len(list(group))) for count, group in groupby(tasks)]
    return ",".join(str(count) if length == 1 else f"{count}(x{length})" for count, length in runs)


def _refuse(sentence: str) -> NoReturn:
    raise ValueError(f"srun {sentence}")
