"""Secret values are only where they belong: not in the database, logs, answers or the process list."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.badinput.yard import DEADLINE_S, CommandResult, Yard, wait_for
from tests.real.environments import python_with

KEPT, SENT, SENT_TO_ROLE = "kept-9f3a77c1b2", "sent-04d1e8aa57", "role-5be0c3d944"
SECRETS = (KEPT, SENT, SENT_TO_ROLE)
TELL = """\
import os, pathlib, sys, time
secrets = [os.environ[name] for name in ("KEPT", "SENT", "ROLES")]
for secret in secrets:
    print("a line with", secret, "in it")
    print(secret, file=sys.stderr)
    sys.stdout.write(secret[:6]); sys.stdout.flush(); time.sleep(0.05); print(secret[6:])
pathlib.Path(sys.argv[1]).write_text(str([len(secret) for secret in secrets]))
while not pathlib.Path("go").exists():
    time.sleep(0.05)
raise SystemExit(f"cannot use {' '.join(secrets)}")
"""
JOB = """\
name: tells
run: [python, tell.py, told]
secrets: [KEPT]
env: {SENT: , OTHER: 1}
roles: {ps: {env: {ROLES: }, run: "true"}}
retry: {max: 1, backoff: 0}
"""
TELL_ALL = """\
import os, pathlib, sys, time
from mpi4py import MPI
everybody = MPI.COMM_WORLD
secrets = " ".join(os.environ[name] for name in ("KEPT", "SENT"))
print("rank", everybody.rank, "has", secrets, flush=True)
everybody.barrier()
if os.environ["GANGER_ATTEMPT"] == "1":
    if everybody.rank == 3:
        print("cannot use", secrets, file=sys.stderr, flush=True)
        time.sleep(0.5)  # mpirun passes on what it has read when it is told of the abort
        everybody.Abort(7)
    everybody.barrier()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""
JOB_OF_ALL = """\
name: reduces
framework: mpi
run: [{python}, tell.py]
nodes: 2
nproc_per_node: 2
setup: 'set -x; test -n "$KEPT$SENT"'
secrets: [KEPT]
env: {{SENT: }}
retry: {{backoff: 0, rules: [{{log: "cannot use", do: retry}}]}}
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as yard:
        yard.put("tell.py", TELL)
        yard.put("job.yaml", JOB)
        yield yard


def keep(yard: Yard, name: str, value: str) -> CommandResult:
    return yard.ganger("secret", "set", name, stdin=f"{value}\n")


def files_with(folder: Path, secrets: tuple[str, ...]) -> set[str]:
    """Return every file under a folder that contains one of the values, whole or without its beginning."""
    parts = [part.encode() for secret in secrets for part in (secret, secret[6:])]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)) for path in files if any(part in path.read_bytes() for part in parts)}


def command_lines() -> str:
    return "\n".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


@contextmanager
def sample_command_lines() -> Iterator[list[str]]:
    """Sample the command lines of all processes repeatedly."""
    samples: list[str] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(0.05):
            samples.append(command_lines())

    sampler = threading.Thread(target=sample)
    sampler.start()
    yield samples
    is_over.set()
    sampler.join()


class OverSocket(http.client.HTTPConnection):
    """HTTP on the server's own socket, as curl would speak it."""

    def __init__(self, yard: Yard) -> None:
        super().__init__("ganger", timeout=DEADLINE_S)
        self._path = str(yard.client.connect(start=False).address()["socket"])

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def answers(yard: Yard, job: str) -> dict[str, str]:
    """Return the answers of every readable address except endless streams, for an existing and an unknown job."""

    def get(path: str) -> str:
        connection = OverSocket(yard)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    paths = json.loads(get("/api/v1/openapi.json"))["paths"]
    readable = [path for path, verbs in paths.items() if "get" in verbs and not path.endswith("/stream")]
    targets = [path.replace("{id}", name).replace("{name}", "none") for path in readable for name in (job, "none")]
    return {path: get(path) for path in targets}


def test_secret_values_do_not_leak(yard: Yard) -> None:
    outputs = [str(keep(yard, "KEPT", KEPT))]
    yard.environment |= {"SENT": SENT, "ROLES": SENT_TO_ROLE}
    outputs += [str(yard.ganger("run", "-f", "job.yaml", "--dry-run", *options)) for options in ((), ("-o", "json"))]
    job = yard.fine("submit", "-f", "job.yaml")
    yard.until(job, "running")
    command_list = ""
    while not (yard.folder / "told").exists():
        command_list += command_lines()
    assert json.loads((yard.folder / "told").read_text()) == [len(secret) for secret in SECRETS]
    yard.put("go", "")
    yard.ganger("wait", job)
    assert yard.states()[job] == "failed"
    assert yard.attempt(job) == 2
    logs = yard.fine("logs", job, "--all") if "--all" in yard.fine("logs", "--help") else yard.fine("logs", job)
    assert "a line with *** in it" in logs
    commands = (("get", job), ("get", job, "-o", "json"), ("ls", "-o", "json"), ("events", job), ("explain", job))
    outputs += [logs, command_list, *(str(yard.ganger(*command)) for command in commands), str(yard.ganger("secret"))]
    (yard.folder / "told").unlink()
    assert [secret for secret in SECRETS for text in outputs if secret in text] == []
    secret_files = {"home/secrets/KEPT", f"home/jobs/{job}/secrets.json"}
    assert files_with(yard.folder, SECRETS) == secret_files
    assert {oct((yard.folder / path).stat().st_mode & 0o777) for path in secret_files} == {"0o600"}


def test_errors_do_not_leak_secret_values(yard: Yard) -> None:
    yard.environment |= {"SENT": SENT, "ROLES": SENT_TO_ROLE}
    yard.ganger("submit", "-f", "job.yaml").refuses(2, "the secret KEPT is not set", "ganger secret set KEPT")
    keep(yard, "KEPT", KEPT)
    outputs = [
        str(yard.ganger("submit", "-f", "job.yaml", *options)) for options in (("--queue", "none"), ("--gpu", "99"))
    ]
    outputs += [str(keep(yard, name, KEPT)) for name in ("a-b", "GANGER_X")]
    yard.environment["SENT"] = SENT * 5_000
    outputs.append(str(yard.ganger("submit", "-f", "job.yaml")))
    assert [secret for secret in SECRETS for text in outputs if secret in text] == []
    assert files_with(yard.folder, SECRETS) == {"home/secrets/KEPT"}


def test_a_shell_value_overrides_a_stored_one_and_is_deleted_with_the_job(yard: Yard) -> None:
    keep(yard, "TOKEN", KEPT)
    code = f"import os; raise SystemExit(os.environ['TOKEN'] != {SENT[:4]!r} + {SENT[4:]!r})"
    assert yard.ganger("run", "--secret", "TOKEN", "--", "python", "-c", code).code == 1
    yard.environment["TOKEN"] = SENT
    job = yard.fine("submit", "--secret", "TOKEN", "--", "python", "-c", code)
    assert yard.ganger("wait", job).code == 0
    yard.fine("delete", job)
    # Files are deleted after the answer, as soon as the last process of the job has ended.
    wait_for(lambda: not (yard.home.jobs / job).exists(), "the job's files are gone")
    assert yard.fine("secret", "delete", "TOKEN") == "deleted TOKEN"
    assert list((yard.home.path / "secrets").iterdir()) == []


@pytest.mark.long
def test_a_failing_mpi_gang_does_not_leak_secret_values(yard: Yard) -> None:
    python = python_with("mpi")
    yard.fine("server", "start", "--topology", "topology.yaml")
    keep(yard, "KEPT", KEPT)
    yard.environment |= {"SENT": SENT}
    yard.put("tell.py", TELL_ALL)
    yard.put("job.yaml", JOB_OF_ALL.format(python=python))
    with sample_command_lines() as command_list:
        job = yard.fine("submit", "-f", "job.yaml")
        wait_for(
            lambda: yard.attempt(job) == 2 and yard.fine("logs", job).count(" has ") == 4, "all of attempt 2 write"
        )
        yard.fine("server", "stop")
        yard.fine("server", "start")
        outputs = answers(yard, job)
        commands = (
            *(("get", job), ("explain", job), ("events", job), ("events",), ("ls", "--all"), ("top", "-o", "json")),
            *(("logs", job, "--rank", "all", "--attempt", "1"), ("logs", job, "--rank", "all"), ("secret",)),
            *(("get", job, "-o", "json"), ("events", job, "-o", "json"), ("clone", job, "--dry-run")),
            ("exec", job, "--", "sh", "-c", "env; set -x; : $KEPT $SENT; exit 3"),
        )
        outputs |= {" ".join(command): str(yard.ganger(*command)) for command in commands}
        yard.put("go", "")
        assert yard.ganger("wait", job).code == 0
    outputs["/proc/*/cmdline"] = "\n".join(command_list)
    assert "prte" in outputs["/proc/*/cmdline"]
    assert "tell.py" in outputs["/proc/*/cmdline"]
    assert "cannot use *** ***" in outputs[f"get {job}"]
    assert [(source, secret) for secret in (KEPT, SENT) for source, text in outputs.items() if secret in text] == []
    secret_files = {"home/secrets/KEPT", f"home/jobs/{job}/secrets.json"}
    assert files_with(yard.folder, (KEPT, SENT)) == secret_files
