"""Values of secrets are where they belong and nowhere else: not in the database, the logs, the answers or the process
list, whatever a job does with them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.badinput.yard import GANGER, Yard

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


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as yard:
        yard.put("tell.py", TELL)
        yard.put("job.yaml", JOB)
        yield yard


def keep(yard: Yard, name: str, value: str) -> subprocess.CompletedProcess[str]:
    command = [GANGER, "secret", "set", name]
    return subprocess.run(
        command, input=f"{value}\n", env=yard.environment, capture_output=True, text=True, check=False
    )


def files_with(folder: Path, secrets: tuple[str, ...]) -> set[str]:
    """Every file under a folder that has one of the values in it, whole or but for its beginning."""
    parts = [part.encode() for secret in secrets for part in (secret, secret[6:])]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)) for path in files if any(part in path.read_bytes() for part in parts)}


def command_lines() -> str:
    return "\n".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def test_no_value_is_where_it_does_not_belong(yard: Yard) -> None:
    said = [str(keep(yard, "KEPT", KEPT))]
    yard.environment |= {"SENT": SENT, "ROLES": SENT_TO_ROLE}
    said += [str(yard.ganger("run", "-f", "job.yaml", "--dry-run", *more)) for more in ((), ("-o", "json"))]
    job = yard.fine("submit", "-f", "job.yaml")
    yard.until(job, "running")
    listed = ""
    while not (yard.folder / "told").exists():
        listed += command_lines()
    assert json.loads((yard.folder / "told").read_text()) == [len(secret) for secret in SECRETS]
    yard.put("go", "")
    yard.ganger("wait", job)
    assert yard.states()[job] == "failed"
    assert yard.attempt(job) == 2
    logs = yard.fine("logs", job, "--all") if "--all" in yard.fine("logs", "--help") else yard.fine("logs", job)
    assert "a line with *** in it" in logs
    words = (("get", job), ("get", job, "-o", "json"), ("ls", "-o", "json"), ("events", job), ("explain", job))
    said += [logs, listed, *(str(yard.ganger(*each)) for each in words), str(yard.ganger("secret"))]
    (yard.folder / "told").unlink()
    assert [secret for secret in SECRETS for text in said if secret in text] == []
    own = {"home/secrets/KEPT", f"home/jobs/{job}/secrets.json"}
    assert files_with(yard.folder, SECRETS) == own
    assert {oct((yard.folder / path).stat().st_mode & 0o777) for path in own} == {"0o600"}


def test_an_error_beside_a_secret_does_not_tell_it(yard: Yard) -> None:
    yard.environment |= {"SENT": SENT, "ROLES": SENT_TO_ROLE}
    yard.ganger("submit", "-f", "job.yaml").refuses(2, "the secret KEPT is not set", "ganger secret set KEPT")
    keep(yard, "KEPT", KEPT)
    said = [str(yard.ganger("submit", "-f", "job.yaml", *more)) for more in (("--queue", "none"), ("--gpu", "99"))]
    said += [str(keep(yard, name, KEPT)) for name in ("a-b", "GANGER_X")]
    yard.environment["SENT"] = SENT * 5_000
    said.append(str(yard.ganger("submit", "-f", "job.yaml")))
    assert [secret for secret in SECRETS for text in said if secret in text] == []
    assert files_with(yard.folder, SECRETS) == {"home/secrets/KEPT"}


def test_a_value_of_the_shell_goes_before_one_that_is_kept_and_is_gone_with_the_job(yard: Yard) -> None:
    keep(yard, "TOKEN", KEPT)
    look = f"import os; raise SystemExit(os.environ['TOKEN'] != {SENT[:4]!r} + {SENT[4:]!r})"
    assert yard.ganger("run", "--secret", "TOKEN", "--", "python", "-c", look).code == 1
    yard.environment["TOKEN"] = SENT
    job = yard.fine("submit", "--secret", "TOKEN", "--", "python", "-c", look)
    assert yard.ganger("wait", job).code == 0
    yard.fine("delete", job)
    assert not (yard.home.jobs / job).exists()
    assert yard.fine("secret", "rm", "TOKEN") == "TOKEN is forgotten"
    assert list((yard.home.path / "secrets").iterdir()) == []
