"""The listener that other machines reach: TLS unless it is refused, and what programs may send there."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

import ganger
from ganger.code.code_snapshot import snapshot
from ganger.code.packed_code import MAX_ARCHIVE_BYTES, pack
from tests.remote.other_machine import OtherMachine, RemoteHome
from tests.rest.serving import ServerHome
from tests.waiting import DEADLINE_S


def curl(server: ServerHome, url: str, *words: str, token: str = "", body: Path | None = None) -> tuple[int, str]:
    """Return curl's exit code and the body of the response, whose certificate was verified."""
    command = ["curl", "-sS", "--cacert", str(server.home.certificate), "-H", f"Authorization: Bearer {token}", *words]
    command += ["--data-binary", f"@{body}"] if body else []
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout or done.stderr


def test_curl_works_with_the_servers_certificate(server: RemoteHome) -> None:
    token = server.client.create_token("curl", None)
    code, answer = curl(server, f"{server.url}/api/v1/whoami", token=token)
    assert (code, json.loads(answer)["user"]) == (0, "curl@token")
    code, answer = curl(server, f"{server.url}/api/v1/jobs")
    assert (code, json.loads(answer)["code"]) == (0, "no_token")
    plain = f"{server.url}/api/v1/whoami".replace("https", "http")
    assert curl(server, plain, token=token)[0] != 0, "a listener with TLS speaks nothing else"
    openssl = ["openssl", "x509", "-in", str(server.home.certificate), "-noout", "-fingerprint", "-sha256"]
    printed = subprocess.run(openssl, capture_output=True, text=True, check=True).stdout
    assert printed.strip().replace(":", "").lower().endswith(f"={server.fingerprint}")
    status = server.ganger("server", "status").stdout
    assert max(map(len, status.splitlines())) <= 80, "the fingerprint can be copied from a narrow terminal"
    assert (server.fingerprint in status, f"https://0.0.0.0:{server.port}" in status) == (True, True)
    server.client.revoke_token("curl")


def test_code_is_stored_by_what_it_is(server: RemoteHome, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("print('sent')")
    digest = snapshot(tmp_path / "code", tmp_path / "store")
    packed, other, broken = tmp_path / "packed", tmp_path / "other", tmp_path / "broken"
    packed.write_bytes(pack(tmp_path / "store" / digest))
    other.write_bytes(gzip.compress(b"no archive"))
    token = server.client.create_token("sender", None)
    url = f"{server.url}/api/v1/code/{digest}"

    def send(target: str, body: Path) -> str:
        code, answer = curl(server, target, "-X", "PUT", token=token, body=body)
        assert code == 0, answer
        return str(json.loads(answer)["code"]) if answer else ""

    assert json.loads(curl(server, url, token=token)[1])["code"] == "no_snapshot"
    assert send(url, other) == "bad_archive"
    assert send(f"{server.url}/api/v1/code/{'0' * 64}", packed) == "bad_archive"
    with broken.open("wb") as file:
        file.truncate(MAX_ARCHIVE_BYTES + 1)
    assert send(url, broken) == "body_too_large"
    before = sorted(server.home.code.iterdir())
    assert send(url, packed) == ""
    assert curl(server, url, token=token) == (0, "")
    assert (server.home.code / digest / "a.py").read_text() == "print('sent')"
    names = [path.name for path in server.home.code.iterdir()]
    assert len(names) <= len(before) + 1, "nothing is left of what was refused"
    assert not any(name.startswith(".") for name in names)
    server.client.revoke_token("sender")


@pytest.mark.parametrize(
    ("codes", "code"),
    [({}, "no_snapshot"), ({".": "0" * 64}, "no_snapshot"), ({".": "../../jobs"}, "no_snapshot")],
)
def test_a_job_gets_only_code_that_was_sent(server: RemoteHome, codes: dict[str, str], code: str) -> None:
    with pytest.raises(ganger.BadRequest) as refused:
        server.client.submit({"spec": {"run": ["true"], "code": "."}, "codes": codes})
    assert refused.value.code == code


def test_programs_use_a_server_on_another_machine(
    server: RemoteHome, user: OtherMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.log_in("sdk")
    (user.work / "t.py").write_text("print('from the other machine')")
    for name in ("HOME", "GANGER_SERVER"):
        monkeypatch.setenv(name, user.environment[name])
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(user.work)
    client = ganger.Client()
    job = client.run("python3 t.py", code=".")
    assert job.wait().row.state == "succeeded"
    assert [line.text for line in job.logs()] == ["from the other machine"]
    assert ganger.Client(server=server.url).job(job.id) == job
    with pytest.raises(ganger.Refused, match=r"no login for https://192\.0\.2\.1:7878"):
        ganger.Client(server="https://192.0.2.1:7878")
    with pytest.raises(ganger.Refused, match="is kept on the server's machine"):
        job.result()


def test_without_tls_only_if_asked_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    server = RemoteHome(tmp_path, "--insecure")
    try:
        token = server.client.create_token("plain", None)
        server.client.restart()
        url = f"http://127.0.0.1:{server.port}/api/v1/whoami"
        answer = subprocess.run(
            ["curl", "-sS", "-H", f"Authorization: Bearer {token}", url], capture_output=True, text=True, check=True
        ).stdout
        assert json.loads(answer)["user"] == "plain@token"
        assert not server.home.certificate.exists()
        server.client.shutdown()
        server.home.certificate.write_text("no certificate")
        refused = server.serve("--listen", f"0.0.0.0:{server.port}")
        assert refused.returncode == 5
        assert "cannot be used as a certificate and its key" in refused.stderr
        assert f"rm -f {server.home.certificate}" in refused.stderr
    finally:
        server.close()
