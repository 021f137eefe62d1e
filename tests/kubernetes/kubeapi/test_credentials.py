"""Credentials for the API server: kubeconfig files, exec programs, and service accounts of pods."""

import asyncio
import base64
import json
import ssl
import stat
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import certifi
import pytest
import trustme
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import RENEW_BEFORE_EXPIRY_S, TOKEN_FILE_MAX_AGE_S, Credentials, CredentialsError
from ganger.kubeapi.request import ObjectRef, read_request
from ganger.kubeapi.resources import NODES
from tests.kubernetes.scripted import kubeconfig, run, serving

SECRET = "abc-secret-def"
NODE = {"metadata": {"name": "n", "resourceVersion": "1"}}


def headers(access: Credentials) -> dict[str, str]:
    return asyncio.run(access.headers())


def of(folder: Path, user: dict[str, Any], server: str = "http://localhost:1/", **cluster: Any) -> Credentials:
    return Credentials.from_kubeconfig([kubeconfig(folder, server, user, **cluster)])


# -- kubeconfig files --------------------------------------------------------------------------------------------------


def test_a_token(tmp_path: Path) -> None:
    access = of(tmp_path, {"token": SECRET})
    assert access.url == "http://localhost:1"
    assert access.namespace == "team"
    assert access.ssl is None
    assert headers(access) == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(access)


def test_no_credentials_and_a_name_with_a_password(tmp_path: Path) -> None:
    assert headers(of(tmp_path, {})) == {}
    assert headers(of(tmp_path, {"username": "u", "password": "p"})) == {"Authorization": "Basic dTpw"}


def test_the_context_that_is_asked_for_out_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first_file = kubeconfig(tmp_path / "one", "http://one:1", {"token": "1"})
    second_file = kubeconfig(tmp_path / "two", "http://two:2", {"token": "2"})
    second_file.write_text(second_file.read_text().replace('"here"', '"there"').replace('"one"', '"two"'))
    files = [tmp_path / "missing", first_file, second_file]
    assert Credentials.from_kubeconfig(files).url == "http://one:1"
    assert Credentials.from_kubeconfig(files, "there").url == "http://two:2"
    with pytest.raises(CredentialsError, match=r"there is no context 'nowhere'; there are: here, there"):
        Credentials.from_kubeconfig(files, "nowhere")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML: see line 1"),
        ("token: 'S3CRET", "is not YAML: see line 1$"),
        ("just words", "is not a kubeconfig file: Expected `object`, got `str`"),
        ("{}", "there is no current context; name one with --context"),
        ("{current-context: x}", "there is no context 'x'; there are: none"),
        ("{current-context: x, contexts: [{name: x}]}", "cluster or user that the files"),
        ("{current-context: x, contexts: [{name: x}, {name: x}]}", "'x' is there twice in one file"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "cluster or user that the files"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: 3}}]}", "Expected `str`, got `int`"),
    ],
)
def test_a_file_that_is_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CredentialsError, match=f"(?s){path}.*{says}"):
        Credentials.from_kubeconfig([path])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="there is no kubeconfig file"):
        Credentials.from_kubeconfig([tmp_path / "config"])


@pytest.mark.parametrize(
    ("user", "cluster", "setting"),
    [
        ({"auth-provider": {"name": "oidc"}}, {}, "auth-provider is not supported"),
        ({"as-groups": ["g"]}, {}, "need `as`"),
        ({"as": "a\nb"}, {}, "one line of text"),
        ({}, {"proxy-url": "socks5://p"}, "proxy-url is not an http or https URL"),
        ({}, {"proxy-url": "http://u:S3CRET@p:abc"}, "^((?!S3CRET).)*proxy-url is not an((?!S3CRET).)*$"),
        ({}, {"server": "x:6443"}, "the server is not an http or https URL"),
        ({}, {"server": "https://x:99999"}, "the server is not an http or https URL"),
        ({}, {"server": "https://me:S3CRET@x"}, "^((?!S3CRET).)*an address alone((?!S3CRET).)*$"),
        ({}, {"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"}, "leave one of them out"),
        ({"client-key": "k"}, {"server": "https://x", "insecure-skip-tls-verify": True}, "No such file"),
        ({"client-key-data": "aw=="}, {"server": "https://x"}, "only one is given"),
        (
            {"client-key-data": "aw==", "client-certificate-data": "aw=="},
            {"server": "https://x"},
            "client certificate and its key cannot be used",
        ),
        ({"client-key-data": "ü", "client-certificate-data": "aw=="}, {"server": "https://x"}, "is not base64"),
        ({"token": 3}, {}, "Expected `str`, got `int`"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v9", "command": "c"}}, {}, "is not one of"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}, {}, "has no command"),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "c", "interactiveMode": "Always"}},
            {},
            "interactiveMode Always is not supported",
        ),
    ],
)
def test_settings_that_are_refused(user: Any, cluster: Any, setting: str, tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=setting):
        of(tmp_path, user, **cluster)


def test_another_user_is_impersonated(tmp_path: Path) -> None:
    user = {"token": SECRET, "as": "ada", "as-uid": "7", "as-groups": ["g", "h"], "as-user-extra": {"a/b": ["1", "2"]}}
    assert sorted(headers(of(tmp_path, user)).items()) == [
        ("Authorization", f"Bearer {SECRET}"),
        ("Impersonate-Extra-a%2Fb", "1"),
        ("Impersonate-Extra-a%2Fb", "2"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-User", "ada"),
    ]


@pytest.mark.parametrize("token", ["a\nb", "tök"])
def test_a_token_that_no_header_can_have(token: str, tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="not one line of ASCII"):
        headers(of(tmp_path, {"token": token}))


def test_what_is_null_is_unset_and_lines_of_data_may_be_broken(tmp_path: Path) -> None:
    pem = base64.encodebytes(f"# é\n{Path(certifi.where()).read_text()}".encode()).decode()
    user = {"token": SECRET, "as-groups": None, "exec": None, "username": None}
    access = of(tmp_path, user, "HTTPS://x:1/k8s/ ", **{"certificate-authority-data": pem, "proxy-url": None})
    assert access.url == "https://x:1/k8s"
    assert access.ssl is not None
    assert headers(access) == {"Authorization": f"Bearer {SECRET}"}


def test_an_encrypted_key_is_not_asked_for_at_the_terminal(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("me@example.com")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "key").write_bytes(key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"x")))
    issued.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    with pytest.raises(CredentialsError, match="the client key is encrypted"):
        of(tmp_path, {"client-key": "key", "client-certificate": "crt"}, "https://x")


def test_a_proxy_that_refuses(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=407)

    async def test() -> None:
        async with serving(answer, tmp_path) as direct:
            proxy = direct.url.replace("//", f"//u:{SECRET}@")
            through = of(tmp_path, {}, "https://cluster.example", **{"proxy-url": proxy})
            async with ApiClient(through, PROGRAM) as api:
                with pytest.raises(ApiError, match="the proxy answered 407") as refusal:
                    await api._http.send(read_request("get", ObjectRef(NODES, "", "n")))
        assert SECRET not in "".join(traceback.format_exception(refusal.value))

    run(test())


def test_a_user_and_a_cluster_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    first = kubeconfig(tmp_path, "http://one:1", {"tokenFile": "not-this"})
    second = kubeconfig(tmp_path / "users", "http://two:2", {"tokenFile": "token"})
    content = json.loads(first.read_text())
    first.write_text(json.dumps(content | {"users": None}))
    (tmp_path / "users/token").write_text(SECRET)
    access = Credentials.from_kubeconfig([first, second])
    assert access.url == "http://one:1"
    assert headers(access) == {"Authorization": f"Bearer {SECRET}"}


def test_requests_go_through_the_proxy_of_the_file(tmp_path: Path) -> None:
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers["Host"], request.headers.getall("Impersonate-Group")))
        return web.json_response(NODE)

    async def test() -> None:
        user = {"as": "ada", "as-groups": ["g", "h"]}
        async with serving(answer, tmp_path, user) as direct:
            through = of(tmp_path, user, server="http://cluster.example:1", **{"proxy-url": direct.url})
            async with ApiClient(through, PROGRAM) as api:
                assert (await api.get(NODES, "n")).metadata.name == "n"

    run(test())
    assert asked == [("cluster.example:1", ["g", "h"])]


def test_authorities_are_found_beside_the_file(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=f"{tmp_path}.*No such file"):
        Credentials.from_kubeconfig([kubeconfig(tmp_path, "https://x:1", {}, **{"certificate-authority": "ca.crt"})])
    trusting = Credentials.from_kubeconfig(
        [kubeconfig(tmp_path, "https://x:1", {}, **{"insecure-skip-tls-verify": True})]
    )
    assert trusting.ssl is not None
    assert trusting.ssl.verify_mode == ssl.CERT_NONE


def test_a_certificate_of_a_user_and_another_name_of_the_server(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(context)
    authority.issue_cert("api.internal").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED
    own = authority.issue_cert("me@example.com")

    def data(blob: trustme.Blob) -> str:
        return base64.b64encode(blob.bytes()).decode()

    user = {"client-certificate-data": data(own.cert_chain_pems[0]), "client-key-data": data(own.private_key_pem)}
    cluster = {"certificate-authority-data": data(authority.cert_pem)}

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(NODE)

    async def test() -> None:
        named = cluster | {"tls-server-name": "api.internal"}
        async with serving(answer, tmp_path, user, context, **named) as access, ApiClient(access, PROGRAM) as api:
            assert (await api.get(NODES, "n")).metadata.name == "n"
        async with serving(answer, tmp_path, user, context, **cluster) as access, ApiClient(access, PROGRAM) as api:
            with pytest.raises(ApiError, match=r"Untrusted: .*certificate is not valid for '127\.0\.0\.1'"):
                await api.get(NODES, "n")

    run(test())


# -- programs that give credentials ------------------------------------------------------------------------------------


def program(folder: Path, text: str, **more: Any) -> dict[str, Any]:
    """Return a user whose credentials a Python program writes."""
    path = folder / "login"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", **more}}


COUNTING = """
import json, os, pathlib, sys
about = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
cluster = {"cluster": {"server": "http://localhost:1/"}} if "CLUSTER" in os.environ else {}
assert about["apiVersion"] == "client.authentication.k8s.io/v1" and about["spec"] == {"interactive": False} | cluster
turn = pathlib.Path(__file__).with_name("turns")
turn.write_text(turn.read_text() + "x" if turn.exists() else "x")
status = {"token": "token-" + str(len(turn.read_text())) + os.environ.get("MORE", "") + "".join(sys.argv[1:])}
if "UNTIL" in os.environ: status["expirationTimestamp"] = os.environ["UNTIL"]
print(json.dumps({"kind": "ExecCredential", "status": status}))
"""


def test_a_program_is_run_once_while_its_token_lasts(tmp_path: Path) -> None:
    env = [{"name": "MORE", "value": "-m"}, {"name": "CLUSTER", "value": "1"}]
    access = of(tmp_path, program(tmp_path, COUNTING, args=["-a"], env=env, provideClusterInfo=True))

    async def request_both() -> list[dict[str, str]]:
        return await asyncio.gather(access.headers(), access.headers())

    assert asyncio.run(request_both()) == [{"Authorization": "Bearer token-1-m-a"}] * 2


def test_a_program_is_run_again_before_its_token_ends(tmp_path: Path) -> None:
    until = (datetime.now(UTC) + timedelta(seconds=3_600)).strftime("%Y-%m-%dT%H:%M:%SZ")
    access = of(tmp_path, program(tmp_path, COUNTING, env=[{"name": "UNTIL", "value": until}]))

    async def hourly() -> None:
        loop = asyncio.get_running_loop()
        first = await access.headers()
        assert access._valid_until_s - loop.time() <= 3_600 - RENEW_BEFORE_EXPIRY_S
        assert access._valid_until_s - loop.time() >= 3_000
        assert await access.headers() is first
        assert access.invalidate(first)
        assert await access.headers() == {"Authorization": "Bearer token-2"}
        # Another request was rejected with the old one: that is known already.
        assert access.invalidate(first)
        assert await access.headers() == {"Authorization": "Bearer token-2"}

    asyncio.run(hourly())


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("raise SystemExit('not logged in')", {}, "./login exited with 1: not logged in"),
        ("print('{')", {}, "wrote no ExecCredential"),
        (f"print('{SECRET}')", {}, "wrote no ExecCredential"),
        ("print('{\"status\": {}}')", {}, "gave no token"),
        ("", {"command": "no-such-program", "installHint": "install it"}, "cannot run no-such-program.*; install it"),
    ],
)
def test_a_program_that_gives_nothing(text: str, more: Any, says: str, tmp_path: Path) -> None:
    access = of(tmp_path, program(tmp_path, text, **more))
    with pytest.raises(CredentialsError, match=says) as error:
        headers(access)
    assert SECRET not in str(error.value)

    async def ask() -> None:
        async with ApiClient(access, PROGRAM) as api:
            await api._http.send(read_request("get", ObjectRef(NODES, "", "n")))

    with pytest.raises(ApiError, match=f"NoCredential: .*{says}") as refusal:
        asyncio.run(ask())
    assert not refusal.value.outcome_unknown


# -- what a pod is given -----------------------------------------------------------------------------------------------


def account(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Path:
    """Write a service account as a kubelet does; the server speaks plain HTTP."""
    host, _, port = url.removeprefix("http://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text("ganger-system")
    (folder / "ca.crt").write_text(Path(certifi.where()).read_text())
    return folder


def test_a_pods_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Credentials.in_cluster(account(tmp_path, monkeypatch, "http://10.0.0.1:443"))
    assert access.url == "https://10.0.0.1:443"
    assert access.namespace == "ganger-system"

    async def test() -> None:
        assert await access.headers() == {"Authorization": "Bearer first"}
        (tmp_path / "token").write_text("second\n")
        assert await access.headers() == {"Authorization": "Bearer first"}
        await asyncio.sleep(TOKEN_FILE_MAX_AGE_S)
        assert await access.headers() == {"Authorization": "Bearer second"}

    run(test())


def test_a_token_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"cannot read the token file .*/token: No such file"):
        headers(of(tmp_path, {"tokenFile": "token"}))


def test_outside_a_pod(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"no service account .*; outside a pod, name a kubeconfig file"):
        Credentials.in_cluster(tmp_path)


def test_a_token_that_is_refused_is_renewed_and_the_request_made_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    sent_tokens = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sent_tokens.append(request.headers["Authorization"])
        token.write_text("new")
        if sent_tokens[-1] != "Bearer new":
            return web.json_response({"reason": "Unauthorized", "message": "expired", "code": 401}, status=401)
        return web.json_response(NODE)

    async def test() -> None:
        async with serving(answer, tmp_path, {"tokenFile": "token"}) as access, ApiClient(access, PROGRAM) as api:
            assert (await api.get(NODES, "n")).metadata.name == "n"

    run(test())
    assert sent_tokens == ["Bearer old", "Bearer new"]


def test_a_token_that_cannot_be_renewed_is_an_error(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"reason": "Unauthorized", "message": "who are you", "code": 401}, status=401)

    async def test() -> None:
        async with serving(answer, tmp_path, {"token": SECRET}) as access, ApiClient(access, PROGRAM) as api:
            with pytest.raises(ApiError, match="401 Unauthorized: who are you") as error:
                await api.get(NODES, "n")
            assert SECRET not in json.dumps([str(error.value), repr(error.value)])

    run(test())
