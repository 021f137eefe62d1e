"""Credentials for the API server, and the verification of its certificate.

lightkube reads kubeconfig files and builds the TLS context. Exec programs that kubeconfig files name are run here,
because lightkube 1.0 neither runs those of the current API version (`client.authentication.k8s.io/v1`) nor renews their
credentials before they expire. No repr and no error contains a credential.
"""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, User, UserExec
from lightkube.core.exceptions import ConfigError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

TOKEN_FILE_MAX_AGE_S: Final = 60.0
"""Maximum age of what was read from a token file: the kubelet renews the file long before the token expires."""
RENEW_BEFORE_EXPIRY_S: Final = 60.0
"""Time before its expiry at which a credential is renewed."""
PROGRAM_TIMEOUT_S: Final = 60.0
_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_FOREVER: Final = float("inf")
_UNSUPPORTED_SETTINGS: Final = {
    "clusters": ("cluster", ("proxy-url", "tls-server-name")),
    "users": ("user", ("as", "as-uid", "as-groups", "as-user-extra", "auth-provider")),
}
"""Settings of kubeconfig files that lightkube ignores silently, which would give another connection than was meant."""


class CredentialsError(ValueError):
    """An error in a kubeconfig file, or in what it names. Its message says which, and what to do."""


class NoKubeconfigError(CredentialsError):
    """No kubeconfig file exists."""


class Credentials:
    """A way to one API server.

    Attributes:
        url: its address.
        ssl: the TLS context, None for plain HTTP.
        namespace: the default namespace.
    """

    def __init__(self, config: SingleConfig) -> None:
        user = config.user or User()
        self.url = config.cluster.server.rstrip("/")
        self.namespace = config.namespace
        self._user = user
        self._folder = config.fname.parent if config.fname else None
        self._headers: dict[str, str] = {}
        self._valid_until_s = -_FOREVER
        self._renew_lock = asyncio.Lock()
        self.ssl = _tls(config, user) if self.url.startswith("https:") else None

    def __repr__(self) -> str:
        return f"Credentials({self.url!r}, namespace={self.namespace!r})"

    @classmethod
    def from_kubeconfig(cls, files: Sequence[Path], context: str | None = None) -> "Credentials":
        """Return the credentials of a context, by default the current one; the first file that names an entry decides.

        Raises CredentialsError.
        """
        try:
            existing = [path for path in files if path.expanduser().exists()]
            if not existing:
                paths = " or ".join(map(str, files)) or "an empty KUBECONFIG"
                raise NoKubeconfigError(f"there is no kubeconfig file: none is at {paths}")
            return cls(_select_context([_read(path) for path in existing], files, context))
        except (ConfigError, msgspec.ValidationError, ssl.SSLError, ValueError) as error:
            if isinstance(error, CredentialsError):
                raise
            raise CredentialsError(f"{':'.join(map(str, files))}: {error}") from error
        except OSError as error:
            file = error.filename or "a file that it names"
            raise CredentialsError(f"{':'.join(map(str, files))}: cannot read {file}: {error.strerror}") from error

    @classmethod
    def in_cluster(cls, service_account: Path = Path(SERVICE_ACCOUNT)) -> "Credentials":
        """Return the credentials of a pod's service account, whose token is rotated. Raises CredentialsError."""
        try:
            config = KubeConfig.from_service_account(service_account).get()
        except (ConfigError, KeyError) as error:
            raise CredentialsError(
                f"this process has no service account of a cluster ({error}); outside a pod, name a kubeconfig file"
            ) from error
        assert config is not None  # noqa: S101  # it has the one context that was just made
        return cls(config)

    @classmethod
    def anonymous(cls, url: str, certificate: str) -> "Credentials":
        """Return no credentials for a server with that certificate (PEM). Raises CredentialsError."""
        try:
            cluster = Cluster(server=url, certificate_auth_data=base64.b64encode(certificate.encode()).decode())
            return cls(SingleConfig("", Context(cluster=""), cluster))
        except (ConfigError, ssl.SSLError, ValueError) as error:
            raise CredentialsError(f"the certificate of {url} cannot be read: {error}") from None

    @property
    def is_renewed_externally(self) -> bool:
        """True if another process renews the credential in its file: an expired one may be valid in a moment."""
        return self._user.token_file is not None

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request sent now. Raises CredentialsError when a program gives no credential."""
        if asyncio.get_running_loop().time() >= self._valid_until_s:
            async with self._renew_lock:
                if asyncio.get_running_loop().time() >= self._valid_until_s:
                    await self._renew()
        return self._headers

    def invalidate(self, headers: dict[str, str]) -> bool:
        """Drop headers that the server rejects. Return whether `headers()` may give others."""
        if self._user.exec is None and self._user.token_file is None:
            return False
        if headers is self._headers:
            self._valid_until_s = -_FOREVER
        return True

    async def _renew(self) -> None:
        user, now_s = self._user, asyncio.get_running_loop().time()
        valid_for_s = _FOREVER
        if user.token_file is not None:
            try:
                token: str | None = self._path(user.token_file).read_text().strip()
            except OSError as error:
                raise CredentialsError(f"cannot read the token file {user.token_file}: {error.strerror}") from error
            valid_for_s = TOKEN_FILE_MAX_AGE_S
        elif user.token is not None:
            token = user.token
        elif user.exec is not None:
            token, valid_for_s = await _run_for_token(user.exec, self._folder)
        else:
            token = None
        self._headers = _basic(user) if token is None else {"Authorization": f"Bearer {token}"}
        self._valid_until_s = now_s + valid_for_s

    def _path(self, name: str) -> Path:
        return self._folder / name if self._folder else Path(name)


def _basic(user: User) -> dict[str, str]:
    if not (user.username and user.password):
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()}


# -- kubeconfig files --------------------------------------------------------------------------------------------------


def _read(path: Path) -> KubeConfig:
    """Read one file; its relative paths are relative to it."""
    path = path.expanduser()
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text())
    except YAMLError as error:
        raise CredentialsError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise CredentialsError(f"{path} is not a kubeconfig file: it is not a mapping")
    lists = {name: content.get(name) or [] for name in ("clusters", "contexts", "users")}
    for name, (kind, settings) in _UNSUPPORTED_SETTINGS.items():
        for entry in lists[name]:
            if unsupported := [setting for setting in settings if (entry.get(kind) or {}).get(setting)]:
                raise CredentialsError(
                    f"{path}: {kind} {entry.get('name')!r} sets {', '.join(unsupported)}, which this client does not "
                    f"support; use another {kind}, with a token, a certificate or an exec program"
                )
    try:
        return KubeConfig.from_dict(content | lists, path)
    except KeyError as error:
        raise CredentialsError(f"{path} is not a kubeconfig file: an entry lacks {error}") from error


def _select_context(configs: Sequence[KubeConfig], files: Sequence[Path], name: str | None) -> SingleConfig:
    """Return the context with that name, or the current one, out of several files."""
    paths = ":".join(map(str, files)) or "no file"
    name = name or next((config.current_context for config in configs if config.current_context), None)
    if name is None:
        next_step = "name one with --context, or `kubectl config use-context`"
        raise CredentialsError(f"{paths} has no current context; {next_step}")
    for config in configs:
        if (context := config.contexts.get(name)) is None:
            continue
        if context.cluster not in config.clusters or (context.user and context.user not in config.users):
            raise CredentialsError(f"{paths}: context {name!r} names a cluster or user that its file does not have")
        selected = config.get(name)
        assert selected is not None  # noqa: S101  # the context exists
        return selected
    known = ", ".join(sorted({context for config in configs for context in config.contexts})) or "none"
    raise CredentialsError(f"{paths} has no context {name!r}; there are: {known}")


def _tls(config: SingleConfig, user: User) -> ssl.SSLContext:
    context: ssl.SSLContext = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
    return context


# -- programs that give credentials ------------------------------------------------------------------------------------


async def _run_for_token(program: UserExec, folder: Path | None) -> tuple[str, float]:
    """Run an exec program; return its token and for how many seconds it is valid. Raises CredentialsError."""
    if program.apiVersion not in _EXEC_VERSIONS:
        raise CredentialsError(
            f"credential plugin {program.command}: apiVersion {program.apiVersion} is not one of {_EXEC_VERSIONS}"
        )
    output = await _run(program, folder)
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


async def _run(program: UserExec, folder: Path | None) -> bytes:
    request: dict[str, Any] = {
        "apiVersion": program.apiVersion,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = os.environ | {"KUBERNETES_EXEC_INFO": json.dumps(request)}
    environment |= {variable.name: variable.value for variable in program.env or ()}
    # A name with a slash is a path, relative to the file; any other is looked up in PATH.
    relative = folder is not None and "/" in program.command
    command = str(folder / program.command) if folder is not None and relative else program.command
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *program.args or (),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {program.installHint}" if program.installHint else ""
        message = f"cannot run {program.command}, which the kubeconfig file names: {error}{hint}"
        raise CredentialsError(message) from error
    try:
        async with asyncio.timeout(PROGRAM_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise CredentialsError(f"{program.command} gave no credential within {PROGRAM_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CredentialsError(
            f"{program.command} exited with {process.returncode}: {errors.decode(errors='replace').strip()}"
        )
    return output
