"""Batch scripts of Slurm as jobs: the options of `#SBATCH` lines, of the command line and of SBATCH_ variables.

An option either becomes a key of the job, changes nothing here and is named, or is refused with what to write instead:
none is dropped silently. The precedence is Slurm's: command line, then variables, then the script.
"""

import getopt
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from ganger.framework_api.launcher_command import parse_positive
from ganger.framework_api.srun import job_keys_of_options, memory_mib
from ganger.model.units import SECOND_MS, parse_duration_ms

TAKEN: Final = {
    "a:array": "`array`",
    "A:account": "`queue`, without `--partition`",
    "C:constraint": "`placement.node_selector`: `KEY=VALUE`, or a feature F as the label `F: 'true'`; with `&` several",
    "c:cpus-per-task": "`resources.cpu`, times the tasks of a node",
    ":container-image": "`image`",
    ":cpus-per-gpu": "`resources.cpu`, times the GPUs of a node",
    "d:dependency": "`after`: afterok, afterany, afternotok; singleton: your jobs of that name that have not ended",
    "D:chdir": "the directory that the job runs in",
    "e:error": "a file that gets a copy of stderr: %j %A %a %x %N %u",
    ":exclusive": "`placement.sharing: exclusive`",
    ":export": "`env`",
    "G:gpus": "`resources.gpu`, divided by the nodes",
    ":gpus-per-node": "`resources.gpu`",
    ":gpus-per-task": "`resources.gpu`, times the tasks of a node",
    ":gres": "`resources.gpu`, of `gpu`",
    "J:job-name": "`name`",
    ":mem": "`resources.memory`",
    ":mem-per-cpu": "`resources.memory`, times the CPUs of a node",
    ":mem-per-gpu": "`resources.memory`, times the GPUs of a node",
    ":comment": "`notes`",
    ":nice": "`priority`: minus its hundredth part",
    ":priority": "`priority`: -1000 to 1000",
    "w:nodelist": "`placement.nodes`: those that the job may use",
    "N:nodes": "`nodes`",
    "n:ntasks": "`nproc_per_node`, divided by the nodes",
    ":ntasks-per-node": "`nproc_per_node`",
    ":ntasks-per-gpu": "`nproc_per_node`, times the GPUs of a node",
    "o:output": "a file that gets a copy of the output, besides `ganger logs`: %j %A %a %x %N %u",
    "p:partition": "`queue`",
    "q:qos": "`queue`, without `--partition` and `--account`; high, normal and low: `priority`",
    "t:time": "`limits.time`",
    ":time-min": "`limits.time_min`",
}
"""Options with a value that become part of the job: before the colon their short form."""
TAKEN_FLAGS: Final = {
    ":requeue": "the default: a job that loses a node starts again",
    ":no-requeue": "`retry: {max: 0}`",
    "s:oversubscribe": "`placement.sharing: shared`",
}
ACTIONS: Final = {
    ":wrap": "the script is this line",
    ":parsable": "print the id only",
    ":test-only": "print the job file, submit nothing; also `--dry-run`",
    "W:wait": "wait for the end of the job, and exit as it does",
    "Q:quiet": "print nothing but errors",
}
NO_EFFECT: Final = {
    **dict.fromkeys(
        (":acctg-freq", ":profile", ":wckey", ":mcs-label", ":extra"), "ganger accounts for every job by itself"
    ),
    **dict.fromkeys((":mail-type", ":mail-user"), "no mail is sent: ganger wait JOB, or ganger events JOB -f"),
    **dict.fromkeys(
        ("m:distribution", ":cpu-freq", ":gpu-freq", ":gpu-bind", ":cpu-bind", ":mem-bind", ":hint", ":gres-flags"),
        "processes are not bound",
    ),
    **dict.fromkeys(
        (":threads-per-core", ":cores-per-socket", ":sockets-per-node", ":ntasks-per-core", ":ntasks-per-socket"),
        "sockets and cores are not chosen",
    ),
    **dict.fromkeys(("B:extra-node-info", ":gpus-per-socket", "S:core-spec", ":thread-spec"), "sockets are not chosen"),
    ":open-mode": "the file is emptied when the job starts, and continued after a restart",
    ":delay-boot": "nodes are not booted for a job",
    ":wait-all-nodes": "the script starts when all nodes are ready",
    ":network": "the network is chosen by placement.network in a job file",
    ":bb": "there is no burst buffer",
    ":bbf": "there is no burst buffer",
    ":tmp": "local disk is not counted",
    ":mincpus": "write --cpus-per-task",
    ":prefer": "preferences are placement.affinity.preferred in a job file",
    ":resv-ports": "ports are not reserved",
}
NO_EFFECT_FLAGS: Final = {
    **dict.fromkeys(("v:verbose", ":ignore-pbs", ":stepmgr"), "nothing to change"),
    **dict.fromkeys(("k:no-kill", ":kill-on-invalid-dep"), "a job that loses a node starts again on others"),
    **dict.fromkeys((":contiguous", ":spread-job", ":use-min-nodes"), "placement goes by topology"),
    ":reboot": "nodes are not booted for a job",
    "O:overcommit": "tasks share the CPUs of their node",
    ":get-user-env": "the job has this shell's PATH and the variables of --export",
    ":propagate": "the limits of the server apply",
}
REFUSED: Final = {
    "b:begin": "submit it at that time",
    "x:exclude": "write --nodelist with the nodes that the job may use",
    ":deadline": "limit its time (--time), or the time that it waits: ganger submit --queue-time 2h",
    "L:licenses": "run such jobs in a queue of their own with a quota",
    ":reservation": "write --partition with a queue that may use these nodes",
    "M:clusters": "choose the cluster: ganger --context NAME sbatch ...",
    ":cluster-constraint": "choose the cluster: ganger --context NAME sbatch ...",
    ":signal": "write checkpoint: {dir: DIR, signal: SIGUSR1, grace: 120s} in a job file",
    ":switches": "write placement: {topology: LEVEL, mode: required} in a job file",
    ":segment": "write placement.slices in a job file",
    ":container": "write image: NAME in a job file",
    ":container-id": "write image: NAME in a job file",
    ":container-mounts": "write volumes in a job file",
    ":tres-per-task": "write --gpus-per-task and --cpus-per-task",
    ":tres-bind": "leave it out: processes are not bound",
    ":power": "leave it out",
    ":export-file": "write --export=NAME=VALUE",
    "i:input": "write `srun COMMAND < FILE` in the script",
    "F:nodefile": "write --nodelist=n1,n2",
    ":uid": "each user submits for themselves",
    ":gid": "each user submits for themselves",
    ":batch": "write --constraint",
}
REFUSED_FLAGS: Final = {"H:hold": "submit it, and then: ganger suspend JOB"}
SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh", "python", "python3")
"""Programs that take a script as the value of -c."""
SCRIPT_BYTES: Final = 120_000
"""An argument of a program may have 128 KiB."""

_TABLES: Final = (TAKEN, NO_EFFECT, REFUSED)
_FLAG_TABLES: Final = (TAKEN_FLAGS, ACTIONS, NO_EFFECT_FLAGS, REFUSED_FLAGS)
_WITH_VALUE: Final = (*(option for table in _TABLES for option in table), ":wrap")
_ALL: Final = tuple(dict.fromkeys((*_WITH_VALUE, *(option for table in _FLAG_TABLES for option in table))))
_LONG: Final = [
    *(option.partition(":")[2] + ("=" if option in _WITH_VALUE else "") for option in _ALL),
    *("dry-run", "tasks-per-node="),
]
_SHORT: Final = "".join(option[0] + (":" if option in _WITH_VALUE else "") for option in _ALL if option[0] != ":")
_LONG_NAMES: Final = {f"-{option[0]}": option[2:] for option in _ALL if option[0] != ":"}
_ALIASES: Final = {"tasks-per-node": "ntasks-per-node", "dry-run": "test-only"}
_OPTIONAL_VALUE: Final = {"--exclusive": "--exclusive=", "--nice": "--nice=100"}
_FLAG_WITH_VALUE: Final = re.compile(r"(--(?:no-kill|get-user-env|propagate|kill-on-invalid-dep))=.*")
_VARIABLES: Final = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_JOB_NAME": "job-name",
    **{
        f"SBATCH_{name.upper().replace('-', '_')}": name
        for name in (
            *("account", "array", "constraint", "dependency", "error", "exclusive", "export", "gpus", "gpus-per-node"),
            *("gpus-per-task", "gres", "mem-per-cpu", "mem-per-gpu", "output", "partition", "qos", "cpus-per-gpu"),
            *("no-requeue", "requeue", "reservation", "signal", "time-min", "cpus-per-task", "ntasks-per-gpu"),
        )
    },
}
"""Variables of the submitting shell -> the option that they stand for."""
_CONDITIONS: Final = {"afterok": "succeeded", "afterany": "ended", "afternotok": "failed"}
_MPIRUN: Final = re.compile(r"^[ \t]*(mpirun|mpiexec)\b", re.MULTILINE)
_PRIORITIES: Final = ("low", "normal", "high")
_FILE_SIGNS: Final = re.compile(r"%(?![jJAaxNunst])")


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A script with its options, as Slurm would read it.

    Attributes:
        text: The script without its options.
        options: The values of options by their long names.
    """

    text: str
    options: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Return whether an option was given."""
        return name in self.options


@dataclass(frozen=True, slots=True)
class Translation:
    """A job that a batch script stands for.

    Attributes:
        spec: The keys of the job, without its command.
        directory: The directory to run in, empty for the current one.
        singleton: True if the job starts after the user's jobs of its name.
        notes: One sentence for each option that changes nothing.
    """

    spec: dict[str, Any]
    directory: str = ""
    singleton: bool = False
    notes: list[str] = field(default_factory=list)


def read_script(text: str, words: Sequence[str], environ: Mapping[str, str]) -> BatchScript:
    """Return a script with its options; raise ValueError with a sentence for one that Slurm does not have."""
    options: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"#SBATCH\s+(hetjob|packjob)", line):
            _refuse(f"line {number}: heterogeneous jobs are roles in a job file")
        if match := re.match(r"#SBATCH\s+(-.*)", line):
            options |= _options(_words(match[1], f"line {number}"), f"line {number}: ")
        elif line.strip() and not line.startswith("#"):
            break  # Slurm reads no further
    for name, option in _VARIABLES.items():
        if name in environ:
            options[option] = environ[name]
    return BatchScript(text, options | _options(words, ""))


def parse_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a command line and what follows them; raise ValueError."""
    prepared = [_OPTIONAL_VALUE.get(word, _FLAG_WITH_VALUE.sub(r"\1", word)) for word in words]
    try:
        pairs, rest = getopt.getopt(prepared, _SHORT, _LONG)
    except getopt.GetoptError as error:
        is_known = "recognized" not in error.msg
        raise ValueError(
            error.msg if is_known else f"there is no option '{'-' * min(2, len(error.opt))}{error.opt}'"
        ) from None
    named = {_LONG_NAMES.get(name, name.lstrip("-")): value for name, value in pairs}
    return {_ALIASES.get(name, name): value for name, value in named.items()}, rest


def translate(script: BatchScript, environ: Mapping[str, str]) -> Translation:
    """Return the job that the options of a script stand for; raise ValueError with a sentence naming the option."""
    options = script.options
    for option, remedy in (REFUSED | REFUSED_FLAGS).items():
        if script.has(name := option.partition(":")[2]):
            _refuse(f"--{name} is not taken over: {remedy}")
    keys = job_keys_of_options(_sizes(options, environ))
    env, notes = {**keys.get("env", {}), **_variables(options)}, _notes(options)
    if match := _MPIRUN.search(script.text):
        notes.append(
            f"{match[1]} in the script starts processes on the first node alone: ganger submit --framework mpi"
        )
    placement = _placement(options)
    spec = {
        "name": _name(options),
        "queue": _queue(options),
        "priority": _priority(options),
        "framework": "slurm",
        "nodes": keys.get("nodes"),
        "nproc_per_node": keys.get("nproc_per_node", 1),
        "resources": keys.get("resources"),
        "placement": placement,
        "limits": _limits(options),
        "retry": {"max": 0} if "no-requeue" in options else None,
        "array": options.get("array"),
        "image": options.get("container-image", "").replace("#", "/", 1),
        "after": _dependencies(options.get("dependency", "")),
        "env": env,
        "notes": options.get("comment"),
    }
    written = {name: value for name, value in spec.items() if value not in (None, {}, [], "")}
    singleton = "singleton" in options.get("dependency", "").split(",")
    return Translation(written, options.get("chdir", ""), singleton, notes)


def command_of(text: str, name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs the text of a script; raise ValueError for one that cannot be run so."""
    if "\r\n" in text:
        _refuse(f"{name} has the line ends of Windows, which shells take for words: sed -i 's/\\r$//' {name}")
    first, _, _ = text.partition("\n")
    if not first.startswith("#!"):
        _refuse(f"the script {name} does not begin with #! and a shell, such as #!/bin/bash")
    if len(text.encode()) > SCRIPT_BYTES:
        _refuse(f"{name} has more than {SCRIPT_BYTES} bytes: run a file from a short script")
    shell = [word for word in first[2:].split() if not word.endswith("/env")]
    program = shell[0].rpartition("/")[2] if shell else ""
    if program not in SHELLS:
        _refuse(f"{name} begins with {first}: the script has to be for one of {', '.join(SHELLS)}")
    return [*shell, "-c", text, name, *arguments]


def _options(words: Sequence[str], place: str) -> dict[str, str]:
    try:
        options, rest = parse_options(words)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from None
    if rest:
        _refuse(f"{place}{rest[0]} is no option")
    return options


def _words(line: str, place: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"\s#.*", "", line))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _notes(options: Mapping[str, str]) -> list[str]:
    reasons = {option.partition(":")[2]: reason for option, reason in (NO_EFFECT | NO_EFFECT_FLAGS).items()}
    notes = [f"--{name} changes nothing: {reasons[name]}" for name in options if name in reasons]
    queue = next((name for name in ("partition", "account") if name in options), "")
    ignored = [name for name in ("account", "qos") if queue and name in options and name != queue]
    ignored = [name for name in ignored if not (name == "qos" and options["qos"] in _PRIORITIES)]
    return notes + [f"--{name} changes nothing: the queue is that of --{queue}" for name in ignored]


def _name(options: Mapping[str, str]) -> str | None:
    text = options.get("job-name")
    return text and (re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "job")


def _queue(options: Mapping[str, str]) -> str | None:
    qos = options.get("qos")
    named = (options.get("partition"), options.get("account"), None if qos in _PRIORITIES else qos)
    queue = next(filter(None, named), None)
    if queue and "," in queue:
        _refuse(f"--partition={queue}: a job is of one queue: write one of them")
    return queue


def _priority(options: Mapping[str, str]) -> str | int | None:
    if options.get("qos") in _PRIORITIES:
        return options["qos"]
    for name, divisor in (("priority", 1), ("nice", -100)):
        if name in options:
            try:
                number = max(-100_000, min(100_000, int(options[name])))
                return max(-1000, min(1000, int(number / divisor)))
            except ValueError:
                _refuse(f"--{name}={options[name]}: write a whole number")
    return None


def _sizes(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options as srun has them: what is per CPU or per GPU is multiplied."""
    sizes = dict(options)
    low, dash, high = sizes.get("nodes", "").partition("-")
    if dash and low != high:
        _refuse(
            f"--nodes={sizes['nodes']}: a job gets all of its nodes: write --nodes={low}, or nodes: {low}..{high} in a "
            "job file, which may change while it runs"
        )
    if dash:
        sizes["nodes"] = low
    if "export" in sizes:
        sizes["export"] = ",".join(_with_value(item, environ) for item in sizes["export"].split(","))
    if "gres" in sizes:  # gpu:4(S:0-1): the sockets are not chosen
        sizes["gres"] = re.sub(r"\(.*?\)|^gres[:/]", "", sizes["gres"])
    if "ntasks-per-gpu" in sizes:
        gpus = _gpus_of_node(sizes)
        sizes["ntasks-per-node"] = str(_positive(sizes, "ntasks-per-gpu") * gpus)
    tasks = job_keys_of_options(sizes).get("nproc_per_node", 1)
    if "cpus-per-gpu" in sizes:
        sizes["cpus-per-task"] = str(-(-_positive(sizes, "cpus-per-gpu") * _gpus_of_node(sizes) // tasks))
    if "mem-per-cpu" in sizes:
        cpus = _positive(sizes, "cpus-per-task") if "cpus-per-task" in sizes else 1
        sizes["mem"] = f"{memory_mib(sizes['mem-per-cpu'], 'mem-per-cpu') * cpus * tasks}M"
    elif "mem-per-gpu" in sizes:
        sizes["mem"] = f"{memory_mib(sizes['mem-per-gpu'], 'mem-per-gpu') * _gpus_of_node(sizes)}M"
    return sizes


def _with_value(item: str, environ: Mapping[str, str]) -> str:
    if "=" in item or item in ("ALL", "NONE", "NIL", ""):
        return item
    return f"{item}={environ[item]}" if item in environ else ""


def _gpus_of_node(sizes: Mapping[str, str]) -> int:
    gpu = job_keys_of_options({name: value for name, value in sizes.items() if name != "mem"})
    count = str(gpu.get("resources", {}).get("gpu", 0)).rpartition(":")[2]
    return int(count) or _refuse("an option per GPU needs the GPUs of a node: write --gpus-per-node")


def _positive(options: Mapping[str, str], name: str) -> int:
    return parse_positive(options[name]) or _refuse(f"--{name}={options[name]}: write one whole number, 1 or more")


def _placement(options: Mapping[str, str]) -> dict[str, Any]:
    placement: dict[str, Any] = {}
    if "exclusive" in options:
        if options["exclusive"] not in ("", "user"):
            _refuse(f"--exclusive={options['exclusive']}: a job may only have its nodes for itself: write --exclusive")
        placement["sharing"] = "exclusive"
    if "constraint" in options:
        placement["node_selector"] = _features(options["constraint"])
    if "nodelist" in options:
        placement["nodes"] = expand_hosts(options["nodelist"])
    return placement


def _features(text: str) -> dict[str, str]:
    selector = {}
    for part in text.strip("[]").replace(",", "&").split("&"):
        key, equals, value = part.partition("=")
        if not re.fullmatch(r"[\w./-]+", key):
            _refuse(
                f"--constraint={text}: only features joined by & are taken over: more than that is placement.affinity "
                "in a job file"
            )
        selector[key] = value if equals else "true"
    return selector


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list of Slurm stands for: `n[01-03,7],m1`."""
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[\]]*)(?:\[([\d,-]+)\]([^\[\]]*))?", item)
        if match is None:
            _refuse(f"{text}: write a list such as n1,n[3-5]")
        for span in match[2].split(",") if match[2] else [""]:
            low, dash, high = span.partition("-")
            if dash and not 0 <= int(high) - int(low) < 10_000:
                _refuse(f"{text}: {span} is no range")
            numbers = [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)] if dash else [low]
            names += [f"{match[1]}{number}{match[3] or ''}" for number in numbers]
    return names


def _limits(options: Mapping[str, str]) -> dict[str, str]:
    limits = {}
    for option, key in (("time", "time"), ("time-min", "time_min")):
        text = options.get(option)
        if text is None or text.upper() in ("0", "UNLIMITED", "INFINITE"):
            continue
        value = job_keys_of_options({"time": text}).get("limits", {}).get("time")
        limits[key] = value if value is not None else f"{parse_duration_ms(text) // SECOND_MS}s"
    return limits


def _dependencies(text: str) -> list[dict[str, str]]:
    dependencies = []
    if "?" in text:
        _refuse(f"--dependency={text}: a job waits for all of them: write , instead of ?")
    for part in filter(None, text.split(",")):
        condition, *jobs = part.split(":")
        if condition == "singleton":
            continue
        if condition not in _CONDITIONS:
            _refuse(f"--dependency={part}: write afterok, afterany, afternotok or singleton")
        dependencies += [{"job": job, "when": _CONDITIONS[condition]} for job in jobs]
    return dependencies


def _variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that only the submission knows."""
    names = {"output": "SBATCH_OUTPUT", "error": "SBATCH_ERROR"}
    files = {variable: options[option] for option, variable in names.items() if option in options}
    for option, variable in names.items():
        if _FILE_SIGNS.search(files.get(variable, "")):
            _refuse(f"--{option}={files[variable]}: of the signs only %j %A %a %x %N %u are known")
    given = {"SLURM_JOB_PARTITION": "partition", "SLURM_JOB_ACCOUNT": "account", "SLURM_JOB_QOS": "qos"}
    described = {variable: options[option] for variable, option in given.items() if option in options}
    return files | described | _array_variables(options.get("array"))


def _array_variables(text: str | None) -> dict[str, str]:
    if text is None or not re.fullmatch(r"\d+-\d+(:\d+)?(%\d+)?", text):
        return {}
    low, high, step = re.match(r"(\d+)-(\d+)(?::(\d+))?", text).groups(default="1")  # type: ignore[union-attr]
    indices = range(int(low), int(high) + 1, max(1, int(step)))
    if not indices:
        return {}
    named = {"COUNT": len(indices), "MIN": indices[0], "MAX": indices[-1], "STEP": indices.step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in named.items()}


def _refuse(sentence: str) -> NoReturn:
    raise ValueError(sentence)
