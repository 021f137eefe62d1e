"""Credentials for the API server: from kubeconfig files, or of a pod's service account.

The fields of a kubeconfig file mean what they mean to kubectl; those that are not supported are refused. No repr and no
error contains a credential.
"""

import asyncio
import base64
import json
import os
import signal
import ssl
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec
from msgspec import Struct, field
from multidict import CIMultiDict
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

TOKEN_FILE_MAX_AGE_S: Final = 60.0
"""Maximum age of what was read from a token file: the kubelet renews the file long before the token expires."""
RENEW_BEFORE_EXPIRY_S: Final = 60.0
"""Time before its expiry at which a credential is renewed."""
PROGRAM_TIMEOUT_S: Final = 60.0
PROGRAM_PAUSE_S: Final = 5.0
"""Time for which a program that failed is not run again: many requests may wait for it."""
MAX_ERROR_CHARACTERS: Final = 300
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which the kubelet puts the token of a pod's service account, its namespace and the cluster's authority."""
_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_FOREVER: Final = float("inf")


class CredentialsError(ValueError):
    """An error in a kubeconfig file, or in what it names. Its message says which, and what to do."""


class NoKubeconfigError(CredentialsError):
    """No kubeconfig file exists."""


# -- records of kubeconfig files (client-go's clientcmd/api/v1); paths in them are absolute once they were read --------


class Cluster(Struct, kw_only=True, rename="kebab", omit_defaults=True):
    """The address of an API server, and the way to it."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] = []


class _Variable(Struct):
    name: str
    value: str


class _Program(Struct, kw_only=True, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class User(Struct, kw_only=True, rename="kebab"):
    """The identity that a request is sent with."""

    token: str = ""
    token_file: str = field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Program | None = None
    auth_provider: Any = None
    as_user: str = field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return "User(...)"


class _Context(Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(Struct):
    name: str
    cluster: Cluster = field(default_factory=Cluster)


class _NamedContext(Struct):
    name: str
    context: _Context = field(default_factory=_Context)


class _NamedUser(Struct):
    name: str
    user: User = field(default_factory=User)


class _Kubeconfig(Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    contexts: list[_NamedContext] = []
    users: list[_NamedUser] = []


class ClusterAccess(NamedTuple):
    """A cluster and a user, as a context names them; `namespace` is empty if it names none."""

    cluster: Cluster
    user: User
    namespace: str = ""


# -- the way to a server -----------------------------------------------------------------------------------------------


class Credentials:
    """A way to one API server.

    Attributes:
        url: its address.
        ssl: the TLS context, None for plain HTTP.
        server_name: the name that its certificate has to have, None for that of the address.
        proxy: the URL of the proxy on the way to it.
        proxy_headers: headers for the proxy alone.
        namespace: the default namespace, empty if none is named.
    """

    def __init__(self, access: ClusterAccess) -> None:
        cluster, user = access.cluster, access.user
        url, proxy = _split("the server", cluster.server), None
        if cluster.proxy_url:
            proxy = _split("proxy-url", cluster.proxy_url)
        if url.username or url.password or url.query or url.fragment:
            raise ValueError("the server is an address alone, without a name, a password, ? and #")
        _check(access)
        self.url, self.namespace = url.geturl().rstrip("/"), access.namespace
        self.server_name = cluster.tls_server_name or None
        self.proxy = None if proxy is None else f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"
        self.proxy_headers: dict[str, str] = {}
        if proxy is not None and proxy.username is not None:
            login = _basic(unquote(proxy.username), unquote(proxy.password or ""))
            self.proxy_headers = {"Proxy-Authorization": login}
        self._cluster, self._user = cluster, user
        self._impersonation = _impersonation_headers(user)
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._valid_until_s = -_FOREVER
        self._failure, self._failed_until_s = "", -_FOREVER
        self._renew_lock = asyncio.Lock()
        self.ssl = _tls(cluster, user) if url.scheme == "https" else None

    def __repr__(self) -> str:
        return f"Credentials({self.url!r}, namespace={self.namespace!r})"

    @classmethod
    def from_kubeconfig(cls, files: Sequence[Path], context: str | None = None) -> "Credentials":
        """Return the credentials of a context, by default the current one; the first file that names an entry decides.

        Raises CredentialsError.
        """
        paths = ":".join(map(str, files))
        try:
            existing = [path.expanduser() for path in files if path.expanduser().exists()]
            if not existing:
                named = " or ".join(map(str, files)) or "an empty KUBECONFIG"
                raise NoKubeconfigError(f"there is no kubeconfig file: none is at {named}")
            return cls(_select([_read(path) for path in existing], context))
        except OSError as error:
            # ssl.SSLError is one too, and names no file.
            detail = f"cannot read {error.filename}: {error.strerror}" if error.filename else str(error)
            raise CredentialsError(f"{paths}: {detail}") from error
        except (ValueError, RuntimeError) as error:  # RuntimeError: of expanduser, and of what is nested too deeply
            if isinstance(error, CredentialsError):
                raise
            raise CredentialsError(f"{paths}: {error}") from error

    @classmethod
    def in_cluster(cls, service_account: Path = SERVICE_ACCOUNT) -> "Credentials":
        """Return the credentials of a pod's service account, whose token is rotated. Raises CredentialsError."""
        token, authority = service_account / "token", service_account / "ca.crt"
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            namespace = (service_account / "namespace").read_text().strip()
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
            cluster = Cluster(server=server, certificate_authority=str(authority))
            return cls(ClusterAccess(cluster, User(token_file=str(token)), namespace))
        except (KeyError, OSError, ValueError) as error:
            raise CredentialsError(
                f"this process has no service account of a cluster ({error}); outside a pod, name a kubeconfig file"
            ) from error

    @classmethod
    def anonymous(cls, url: str, certificate: str) -> "Credentials":
        """Return no credentials for a server with that certificate (PEM). Raises CredentialsError."""
        try:
            data = base64.b64encode(certificate.encode()).decode()
            return cls(ClusterAccess(Cluster(server=url, certificate_authority_data=data), User()))
        except (ValueError, OSError) as error:
            raise CredentialsError(f"the certificate of {url} cannot be read: {error}") from None

    @property
    def is_renewed_externally(self) -> bool:
        """True if another process renews the credential in its file: an expired one may be valid in a moment."""
        return bool(self._user.token_file)

    async def headers(self) -> CIMultiDict[str]:
        """Return the headers of a request sent now. Raises CredentialsError when a program gives no credential."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._valid_until_s:
            async with self._renew_lock:
                if loop.time() < self._failed_until_s:
                    raise CredentialsError(self._failure)
                if loop.time() >= self._valid_until_s:
                    try:
                        await self._renew()
                    except CredentialsError as error:
                        if self._user.exec is not None:
                            self._failure, self._failed_until_s = str(error), loop.time() + PROGRAM_PAUSE_S
                        raise
        return self._headers

    def invalidate(self, headers: CIMultiDict[str]) -> bool:
        """Drop headers that the server rejects. Return whether `headers()` may give others."""
        if self._user.exec is None and not self._user.token_file:
            return False
        if headers is self._headers:
            self._valid_until_s = -_FOREVER
        return True

    async def _renew(self) -> None:
        user, now_s = self._user, asyncio.get_running_loop().time()
        token, valid_for_s = user.token, _FOREVER
        if user.token_file:
            try:
                token = _content(user.token_file).decode(errors="replace").strip()
            except OSError as error:
                raise CredentialsError(f"cannot read the token file {user.token_file}: {error.strerror}") from error
            if not token:
                raise CredentialsError(f"the token file {user.token_file} is empty")
            valid_for_s = TOKEN_FILE_MAX_AGE_S
        elif user.exec is not None and not token:
            token, valid_for_s = await _run_for_token(user.exec, self._cluster)
        if token and not (token.isascii() and token.isprintable()):
            raise CredentialsError("the token is not one line of ASCII text: check where it comes from")
        self._headers = self._impersonation.copy()
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif user.username:
            self._headers["Authorization"] = _basic(user.username, user.password)
        self._valid_until_s = now_s + valid_for_s


def _basic(name: str, password: str) -> str:
    """Return the value of a header for basic authentication (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _check(access: ClusterAccess) -> None:
    """Raise ValueError for settings that contradict each other, or that are not supported."""
    cluster, user = access.cluster, access.user
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise ValueError("insecure-skip-tls-verify is set beside a certificate authority: leave one of them out")
    if user.auth_provider:
        raise ValueError("auth-provider is not supported, and kubectl has dropped it: use an exec program")
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.as_user:
        raise ValueError("as-uid, as-groups and as-user-extra need `as`, the name of the user")
    program = user.exec
    if program is None:
        return
    if not program.command or "\0" in program.command:
        raise ValueError("the exec program of the user has no command")
    if program.api_version not in _EXEC_VERSIONS:
        raise ValueError(
            f"credential plugin {program.command}: apiVersion {program.api_version} is not one of {_EXEC_VERSIONS}"
        )
    if program.interactive_mode == "Always":
        raise ValueError(
            f"credential plugin {program.command}: interactiveMode Always is not supported, as no terminal is given "
            "to it: log in with it by hand, and set IfAvailable"
        )


def _split(what: str, text: str) -> SplitResult:
    """Return the parts of an http or https URL. Raise ValueError, without the URL: it may have a password."""
    with suppress(ValueError):  # of urlsplit, or of the port
        url = urlsplit(text.strip())
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return url
    raise ValueError(f"{what} is not an http or https URL: write https://HOST:PORT")


def _impersonation_headers(user: User) -> CIMultiDict[str]:
    """Return the headers that ask to act as another user. Raise ValueError for text that no header can have."""
    headers: CIMultiDict[str] = CIMultiDict()
    if user.as_user:
        headers["Impersonate-User"] = user.as_user
    if user.as_uid:
        headers["Impersonate-Uid"] = user.as_uid
    for group in user.as_groups:
        headers.add("Impersonate-Group", group)
    for key, values in user.as_user_extra.items():
        for value in values:
            headers.add(f"Impersonate-Extra-{quote(key, safe='')}", value)
    if not all(value.isprintable() for value in headers.values()):
        raise ValueError("as, as-uid, as-groups and as-user-extra are one line of text each")
    return headers


# -- kubeconfig files --------------------------------------------------------------------------------------------------


def _read(path: Path) -> _Kubeconfig:
    """Read one file; paths in it are relative to its folder. Raise CredentialsError."""
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text())
        # What is null is unset, wherever it is: tools that write such files differ in what they leave out.
        config = msgspec.convert({} if content is None else _without_nulls(content), _Kubeconfig)
    except YAMLError as error:
        # Its own text has the line, and that may be a credential.
        mark = getattr(error, "problem_mark", None)
        where = f": see line {mark.line + 1}" if mark else ""
        raise CredentialsError(f"{path} is not YAML{where}") from None
    except UnicodeDecodeError as error:
        raise CredentialsError(f"{path} is not UTF-8 text") from error
    except msgspec.ValidationError as error:
        raise CredentialsError(f"{path} is not a kubeconfig file: {error}") from error

    def absolute(name: str) -> str:
        return str(path.absolute().parent / name) if name else ""

    for cluster in (entry.cluster for entry in config.clusters):
        cluster.certificate_authority = absolute(cluster.certificate_authority)
    for user in (entry.user for entry in config.users):
        user.token_file = absolute(user.token_file)
        user.client_certificate, user.client_key = absolute(user.client_certificate), absolute(user.client_key)
        # A name with a slash is a path; any other is looked up in PATH.
        if user.exec is not None and "/" in user.exec.command:
            user.exec.command = absolute(user.exec.command)
    return config


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value if part is not None] if isinstance(value, list) else value


def _select(configs: Sequence[_Kubeconfig], name: str | None) -> ClusterAccess:
    """Return what the context with that name, or the current one, leads to. Raise ValueError."""
    for config in configs:
        for entries in (config.contexts, config.clusters, config.users):
            names = [entry.name for entry in entries]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"{twice!r} is there twice in one file")
    # Reversed: the first of the files that has an entry decides.
    contexts = {entry.name: entry.context for config in reversed(configs) for entry in config.contexts}
    clusters = {entry.name: entry.cluster for config in reversed(configs) for entry in config.clusters}
    users = {entry.name: entry.user for config in reversed(configs) for entry in config.users}
    name = name or next((config.current_context for config in configs if config.current_context), None)
    if name is None:
        raise ValueError("there is no current context; name one with --context, or `kubectl config use-context`")
    if (context := contexts.get(name)) is None:
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(sorted(contexts)) or 'none'}")
    if context.cluster not in clusters or (context.user and context.user not in users):
        raise ValueError(f"context {name!r} names a cluster or user that the files do not have")
    return ClusterAccess(clusters[context.cluster], users.get(context.user) or User(), context.namespace)


def _tls(cluster: Cluster, user: User) -> ssl.SSLContext:
    """Return the TLS context of a connection. Raise OSError, of which ssl.SSLError is one, and ValueError."""
    authority = _data("certificate-authority-data", cluster.certificate_authority_data)
    context = ssl.create_default_context(
        cafile=None if authority else cluster.certificate_authority or None,
        cadata=authority.decode("ascii", "ignore") or None,  # comments between certificates may be anything
    )
    # The authorities that kubeadm makes do not name the key of their issuer, which Python asks for from 3.13 on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.insecure_skip_tls_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = _data("client-certificate-data", user.client_certificate_data) or _content(user.client_certificate)
    key = _data("client-key-data", user.client_key_data) or _content(user.client_key)
    if bool(certificate) != bool(key):
        raise ValueError("of client-certificate and client-key only one is given")
    if certificate:
        # OpenSSL reads them from a file only, which nobody else can read, and which is gone at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            try:
                context.load_cert_chain(file.name, password=_refuse_encrypted)
            except ssl.SSLError as error:
                raise ValueError(f"the client certificate and its key cannot be used: {error.reason}") from None
    return context


def _refuse_encrypted() -> str:
    """Raise ValueError, where OpenSSL would ask at the terminal."""
    raise ValueError("the client key is encrypted: decrypt it with `openssl pkey`")


def _data(name: str, text: str) -> bytes:
    """Return what base64 text has, in which lines may be broken. Raise ValueError."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise ValueError(f"{name} is not base64") from None


def _content(path: str) -> bytes:
    return Path(path).read_bytes() if path else b""


# -- programs that give credentials ------------------------------------------------------------------------------------


async def _run_for_token(program: _Program, cluster: Cluster) -> tuple[str, float]:
    """Run an exec program; return its token and for how many seconds it is valid. Raises CredentialsError."""
    output = await _run(program, cluster)
    try:
        status = json.loads(output)["status"]
        token, expiry = status.get("token"), status.get("expirationTimestamp")
        valid_for_s = _FOREVER if expiry is None else datetime.fromisoformat(expiry).timestamp() - time.time()
    except (ValueError, KeyError, TypeError, AttributeError):
        # The output may contain part of a credential, so it is not shown.
        message = f"{program.command} wrote no ExecCredential with a status; run it by hand to see"
        raise CredentialsError(message) from None
    if not isinstance(token, str) or not token:
        message = f"{program.command} gave no token; client certificates of exec programs are not supported"
        raise CredentialsError(message)
    # A short-lived token is not requested again for each request.
    return token, max(valid_for_s - RENEW_BEFORE_EXPIRY_S, valid_for_s / 2, 1.0)


async def _run(program: _Program, cluster: Cluster) -> bytes:
    """Run an exec program and return its output. Raise CredentialsError."""
    request: dict[str, Any] = {
        "apiVersion": program.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    if program.provide_cluster_info:
        request["spec"]["cluster"] = _cluster_info(cluster)
    environment = os.environ | {"KUBERNETES_EXEC_INFO": json.dumps(request)}
    environment |= {variable.name: variable.value for variable in program.env or ()}
    try:
        process = await asyncio.create_subprocess_exec(
            program.command,
            *program.args or (),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # it may be a script: what that runs has to end with it
        )
    except OSError as error:
        hint = f"; {program.install_hint}" if program.install_hint else ""
        message = f"cannot run {program.command}, which the kubeconfig file names: {error}{hint}"
        raise CredentialsError(message) from error
    try:
        async with asyncio.timeout(PROGRAM_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise CredentialsError(f"{program.command} gave no credential within {PROGRAM_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        last_line = next(iter(errors.decode(errors="replace").strip().splitlines()[-1:]), "")
        reason = "".join(filter(str.isprintable, last_line))[:MAX_ERROR_CHARACTERS]
        raise CredentialsError(f"{program.command} exited with {process.returncode}: {reason}")
    return output


def _cluster_info(cluster: Cluster) -> dict[str, Any]:
    """Return what a program is told of the cluster (client.authentication.k8s.io/v1, ExecCredential.spec.cluster)."""
    info: dict[str, Any] = msgspec.to_builtins(cluster)
    if path := info.pop("certificate-authority", ""):
        info.setdefault("certificate-authority-data", base64.b64encode(_content(path)).decode())
    for extension in info.pop("extensions", ()):
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info
