"""Batch scripts of Slurm: their options as keys of a job, and what cannot be taken over named."""

from typing import Any

import pytest

from ganger.framework_api import sbatch
from ganger.launcher.remote_exec.srun import Step, UsageError, layout, parse, room
from ganger.spec import spec_from_dict

NODES = [("n1", "10.0.0.1", 2), ("n2", "10.0.0.2", 2), ("n3", "10.0.0.3", 2)]


def translated(
    line: str, script: str = "", environ: dict[str, str] | None = None, **unset: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys that differ from those of a script without options, and the notes."""
    environ = environ or {}
    text = f"#!/bin/bash\n{script}\nsrun date\n"
    job = sbatch.translate(sbatch.read_script(text, line.split(), environ), environ)
    spec = {"name": "a"} | job.spec | {"run": sbatch.command_of(text, "a.sh", ())}
    spec_from_dict(spec, "the job")
    common = {"framework": "slurm", "nproc_per_node": 1}
    return {key: value for key, value in job.spec.items() if common.get(key) != value}, job.notes


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("", {}),
        ("-N 2 --ntasks-per-node=4 -t 60", {"nodes": 2, "nproc_per_node": 4, "limits": {"time": "3600s"}}),
        ("--nodes=2-2 -n 8", {"nodes": 2, "nproc_per_node": 4}),
        ("-J My_Job.1 -p gpu", {"name": "my-job-1", "queue": "gpu"}),
        ("--gres=gpu:a100:4(S:0-1) --cpus-per-gpu=8", {"resources": {"gpu": "A100:4", "cpu": 32}}),
        ("--gpus-per-node=4 --ntasks-per-gpu=1", {"nproc_per_node": 4, "resources": {"gpu": 4}}),
        (
            "--tasks-per-node 2 -c 4 --mem-per-cpu=2G",
            {"nproc_per_node": 2, "resources": {"cpu": 8, "memory": "16384Mi"}},
        ),
        ("-G 8 -N 2 --mem-per-gpu 10G", {"nodes": 2, "resources": {"gpu": 4, "memory": "40960Mi"}}),
        ("--exclusive", {"placement": {"sharing": "exclusive"}}),
        ("-C a100&zone=b", {"placement": {"node_selector": {"a100": "true", "zone": "b"}}}),
        ("-w n[08-10,12],m1", {"placement": {"nodes": ["n08", "n09", "n10", "n12", "m1"]}}),
        ("-q high", {"priority": "high"}),
        ("--qos=long", {"queue": "long"}),
        ("--nice", {"priority": -1}),
        ("--nice=-5000", {"priority": 50}),
        ("--no-requeue", {"retry": {"max": 0}}),
        ("--time-min=1:00:00 -t 1-12", {"limits": {"time": "129600s", "time_min": "3600s"}}),
        (
            "-d afterok:a-1:b-2,afterany:c-3,singleton",
            {
                "after": [
                    {"job": "a-1", "when": "succeeded"},
                    {"job": "b-2", "when": "succeeded"},
                    {"job": "c-3", "when": "ended"},
                ]
            },
        ),
        (
            "-a 0-9:2%3",
            {
                "array": "0-9:2%3",
                "env": {
                    f"SLURM_ARRAY_TASK_{n}": v for n, v in (("COUNT", "5"), ("MIN", "0"), ("MAX", "8"), ("STEP", "2"))
                },
            },
        ),
        (
            "-o logs/%x-%A_%a.out -e %N-%u.err",
            {"env": {"SBATCH_OUTPUT": "logs/%x-%A_%a.out", "SBATCH_ERROR": "%N-%u.err"}},
        ),
        (f"--nice={'9' * 400}", {"priority": -1000}),
        ("--export=ALL,B,C=3,NOT_SET", {"env": {"B": "2", "C": "3"}}),
        ("--container-image=nvcr.io#nvidia/pytorch:24.01", {"image": "nvcr.io/nvidia/pytorch:24.01"}),
    ],
)
def test_options_become_keys_of_the_job(line: str, keys: dict[str, Any]) -> None:
    described = {f"SLURM_JOB_{name}" for name in ("PARTITION", "ACCOUNT", "QOS")}
    for words, script in ((line, ""), ("", f"# more\n#SBATCH {line or '-v'}  # why")):
        spec, _ = translated(words, script, {"B": "2"})
        env = {name: value for name, value in spec.pop("env", {}).items() if name not in described}
        assert spec | ({"env": env} if env else {}) == keys


def test_the_command_line_comes_before_variables_and_they_before_the_script() -> None:
    environ = {"SBATCH_PARTITION": "from-shell", "SBATCH_TIMELIMIT": "2"}
    spec, _ = translated("-p typed", "#SBATCH -p written -t 1 -N 2", environ)
    assert (spec["queue"], spec["limits"], spec["nodes"]) == ("typed", {"time": "120s"}, 2)


def test_lines_after_the_first_command_are_comments() -> None:
    assert translated("", "date\n#SBATCH -N 2\n#SBATCH --no-such")[0] == {}


def test_what_changes_nothing_is_named_with_the_reason() -> None:
    _, notes = translated("--mail-user=a@b -m block -p gpu -A physics --qos=low")
    assert notes == [
        "--mail-user changes nothing: no mail is sent: ganger wait JOB, or ganger events JOB -f",
        "--distribution changes nothing: processes are not bound",
        "--account changes nothing: the queue is that of --partition",
    ]
    assert "mpirun in the script starts processes on the first node alone" in translated("", "mpirun ./x")[1][0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--begin=now+1hour", "--begin is not taken over: submit it at that time"),
        ("-H", "--hold is not taken over: submit it, and then: ganger suspend JOB"),
        ("--signal=B:USR1@120", "--signal is not taken over: write checkpoint:"),
        ("--no-such=1", "there is no option '--no-such'"),
        ("-N", "option -N requires argument"),
        ("-N 2-4", "--nodes=2-4: a job gets all of its nodes"),
        ("-d after:a-1", "--dependency=after:a-1: write afterok"),
        ("-d afterok:a?afterok:b", "write , instead of ?"),
        ("-o %8j-%c.out", "of the signs only %j %A %a %x %N %u are known"),
        ("-C a|b", "--constraint=a|b: only features joined by &"),
        ("-p a,b", "a job is of one queue"),
        ("--exclusive=topo", "--exclusive=topo: a job may only"),
        ("--cpus-per-gpu=4", "write --gpus-per-node"),
        ("--gres=shard:2", "--gres=shard:2: ganger has no such resource"),
        ("--mem-per-cpu=much", "--mem-per-cpu=much: write a size"),
        ("--priority=top", "--priority=top: write a whole number"),
        ("-w n[9-1]", "9-1 is no range"),
        ("-N 2 -n 5", "5 tasks do not divide by 2 nodes"),
    ],
)
def test_what_has_no_key_is_refused_with_what_to_write(line: str, sentence: str) -> None:
    for words, script in ((line, ""), ("", f"#SBATCH {line}")):
        with pytest.raises(ValueError, match=r".") as refused:
            translated(words, script)
        assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("srun date\n", "does not begin with #!"),
        ("#!/bin/sh\r\ndate\r\n", "line ends of Windows"),
        ("#!/usr/bin/perl\n", "the script has to be for one of sh, bash"),
        ("#!/bin/sh\n" + "#" * sbatch.SCRIPT_BYTES, "has more than 120000 bytes"),
    ],
)
def test_a_script_needs_a_shell(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        sbatch.command_of(text, "a.sh", ())
    assert sentence in str(refused.value)
    assert sbatch.command_of("#!/usr/bin/env bash\n", "a.sh", ("x",)) == [
        "bash",
        "-c",
        "#!/usr/bin/env bash\n",
        "a.sh",
        "x",
    ]


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ("", [2, 2, 2]),
        ("-n 1", [1]),
        ("-n 3", [2, 1]),
        ("-N 3 -n 3", [1, 1, 1]),
        ("-N 3 -n 4", [2, 1, 1]),
        ("-n 12", [4, 4, 4]),
        ("--ntasks-per-node=1", [1, 1, 1]),
        ("--ntasks-per-node=1 -n 2", [1, 1]),
        ("-N2 --ntasks-per-node 4", [4, 4]),
        ("-w 10.0.0.2,n3", [2, 2]),
        ("-r 1 -n1 --exclusive -K -l", [1]),
        ("-x n1 -N 1", [2]),
    ],
)
def test_a_step_has_its_tasks_on_the_first_nodes(line: str, tasks: list[int]) -> None:
    options, command = parse([*line.split(), "date", "-N", "9"])
    placed = layout(options, NODES)
    assert [count for _, _, count in placed] == tasks
    assert command == ["date", "-N", "9"]
    first = "n2" if "-w" in line or "-r" in line or "-x" in line else "n1"
    assert placed[0][0] == first


@pytest.mark.parametrize(
    ("line", "running", "tasks"),
    [
        ("-n 1", [{"n1": 1}], {"n1": 1}),
        ("-n 1", [{"n1": 2}], {"n2": 1}),
        ("-n 3", [{"n1": 1}, {"n2": 1}], {"n1": 1, "n2": 1, "n3": 1}),
        ("-w n1", [{"n1": 1}], None),
        ("-w n1 -n 1", [{"n1": 2}], None),
        ("-N 3 -n 3", [{"n3": 2}], None),
        ("", [{"n3": 1}], None),
        ("-n 1", [{"n1": 2, "n2": 2, "n3": 2}], None),
        ("-n 12", [{"n3": 2}], {"n1": 4, "n2": 4, "n3": 4}),
    ],
)
def test_a_step_takes_what_others_leave_or_waits(line: str, running: list[dict[str, int]], tasks: Any) -> None:
    placed = room(parse([*line.split(), "date"])[0], NODES, running)
    assert (None if placed is None else {name: count for name, _, count in placed}) == tasks


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("-N 4 date", "--nodes=4: the job has 3 such nodes"),
        (f"-n {'9' * 5_000} date", "write one whole number"),
        ("-n all date", "--ntasks=all: write one whole number"),
        ("-w n9 date", "--nodelist: n9 is no node of this job; it has n1, n2, n3"),
        ("-x n1,n2,n3 date", "no node of this job is left"),
        ("-r 3 date", "no node of this job is left"),
        ("--pty bash", "--pty: a job has no terminal"),
        ("--mpi=pmix date", "--mpi=pmix: tasks find no PMI here"),
        ("--no-such date", "option --no-such not recognized"),
        ("-N 2", "a command is missing"),
    ],
)
def test_a_step_that_cannot_be_is_named(line: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        layout(parse(line.split())[0], NODES)
    assert sentence in str(refused.value)


def test_a_step_whose_output_has_no_place_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert Step({"output": "/missing/%t.log", "kill-on-bad-exit": "0"}, ["date"], NODES, 0).run() == 1
    assert "srun: error: n1: task 0: [Errno 2] No such file or directory: '/missing/0.log'" in capsys.readouterr().err
