"""Who we are to the API server, and how it shows that it is the API server.

Built by the wiring from kubeconfig files or from what a pod is given; used by `transport` for each request. lightkube
reads the files and builds the TLS context. Programs that kubeconfig files name for credentials are run here, because
lightkube 1.0 neither runs those of today's API version (`client.authentication.k8s.io/v1`) nor renews what they give
before it runs out. Nothing here shows a credential in its repr, and no error names one.
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
from lightkube.config.models import User, UserExec
from lightkube.core.exceptions import ConfigError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

TOKEN_FILE_EVERY_S: Final = 60.0
"""How old what was read from a token file may be: the kubelet renews it long before it runs out."""
EARLY_S: Final = 60.0
"""How long before its end a credential is renewed."""
PROGRAM_WITHIN_S: Final = 60.0
_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_FOR_EVER: Final = float("inf")
_NOT_DONE: Final = {
    "clusters": ("cluster", ("proxy-url", "tls-server-name")),
    "users": ("user", ("as", "as-uid", "as-groups", "as-user-extra", "auth-provider")),
}
"""Settings of kubeconfig files that would be passed over in silence, and give another connection than was meant."""


class Unusable(ValueError):
    """A kubeconfig file, or what it names, that gives no way to the API server. Says which, and what to do."""


class NoFileError(Unusable):
    """There is no kubeconfig file at all."""


class Credentials:
    """A way to one API server: `url`, `ssl` (None for plain HTTP), `namespace` where nothing else is said, and fresh
    `headers()` for each request."""

    def __init__(self, config: SingleConfig) -> None:
        user = config.user or User()
        self.url = config.cluster.server.rstrip("/")
        self.namespace = config.namespace
        self._user = user
        self._folder = config.fname.parent if config.fname else None
        self._headers: dict[str, str] = {}
        self._until_s = -_FOR_EVER
        self._renewing = asyncio.Lock()
        self.ssl = _tls(config, user) if self.url.startswith("https:") else None

    def __repr__(self) -> str:
        return f"Access({self.url!r}, namespace={self.namespace!r})"

    @classmethod
    def of_files(cls, files: Sequence[Path], context: str | None = None) -> "Credentials":
        """What kubeconfig files say of a context, or of the current one; the first file that names a thing decides.

        Raises Unusable.
        """
        try:
            there = [path for path in files if path.expanduser().exists()]
            if not there:
                where = " or ".join(map(str, files)) or "an empty KUBECONFIG"
                raise NoFileError(f"there is no kubeconfig file: none is at {where}")
            return cls(_chosen([_read(path) for path in there], files, context))
        except (ConfigError, msgspec.ValidationError, ssl.SSLError, ValueError) as error:
            where = ":".join(map(str, files))
            raise error if isinstance(error, Unusable) else Unusable(f"{where}: {error}") from error
        except OSError as error:
            where = ":".join(map(str, files))
            what = error.filename or "a file that it names"
            raise Unusable(f"{where}: cannot read {what}: {error.strerror}") from error

    @classmethod
    def in_cluster(cls, service_account: Path = Path(SERVICE_ACCOUNT)) -> "Credentials":
        """What a pod is given: its service account's token, which changes under way. Raises Unusable."""
        try:
            config = KubeConfig.from_service_account(service_account).get()
        except (ConfigError, KeyError) as error:
            raise Unusable(
                f"this process has no service account of a cluster ({error}); outside a pod, name a kubeconfig file"
            ) from error
        assert config is not None  # noqa: S101  # it has the one context that was just made
        return cls(config)

    @property
    def is_kept_by_others(self) -> bool:
        """Whether somebody else renews the credential, in its file: one that has run out may be good in a moment."""
        return self._user.token_file is not None

    async def headers(self) -> dict[str, str]:
        """What to send with a request that is made now. Raises Unusable when a program gives no credential."""
        if asyncio.get_running_loop().time() >= self._until_s:
            async with self._renewing:
                if asyncio.get_running_loop().time() >= self._until_s:
                    await self._renew()
        return self._headers

    def refused(self, headers: dict[str, str]) -> bool:
        """The server does not take these any more. Gives whether others may be had, by asking for `headers()` again."""
        if self._user.exec is None and self._user.token_file is None:
            return False
        if headers is self._headers:
            self._until_s = -_FOR_EVER
        return True

    async def _renew(self) -> None:
        user, now_s = self._user, asyncio.get_running_loop().time()
        lasts_s = _FOR_EVER
        if user.token_file is not None:
            try:
                token: str | None = self._path(user.token_file).read_text().strip()
            except OSError as error:
                raise Unusable(f"cannot read the token file {user.token_file}: {error.strerror}") from error
            lasts_s = TOKEN_FILE_EVERY_S
        elif user.token is not None:
            token = user.token
        elif user.exec is not None:
            token, lasts_s = await _credential(user.exec, self._folder)
        else:
            token = None
        self._headers = _basic(user) if token is None else {"Authorization": f"Bearer {token}"}
        self._until_s = now_s + lasts_s

    def _path(self, name: str) -> Path:
        return self._folder / name if self._folder else Path(name)


def _basic(user: User) -> dict[str, str]:
    if not (user.username and user.password):
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()}


# -- kubeconfig files --------------------------------------------------------------------------------------------------


def _read(path: Path) -> KubeConfig:
    """One file; its relative paths are relative to it. Raises what `of_files` makes one error of."""
    path = path.expanduser()
    try:
        said = YAML(typ="safe", pure=True).load(path.read_text())
    except YAMLError as error:
        raise Unusable(f"{path} is no YAML: {error}") from error
    if not isinstance(said, dict):
        raise Unusable(f"{path} is no kubeconfig file: it is not a mapping")
    lists = {name: said.get(name) or [] for name in ("clusters", "contexts", "users")}
    for name, (kind, settings) in _NOT_DONE.items():
        for entry in lists[name]:
            if given := [setting for setting in settings if (entry.get(kind) or {}).get(setting)]:
                raise Unusable(
                    f"{path}: {kind} {entry.get('name')!r} sets {', '.join(given)}, which this client does not support;"
                    f" use another {kind}, with a token, a certificate or an exec program"
                )
    try:
        return KubeConfig.from_dict(said | lists, path)
    except KeyError as error:
        raise Unusable(f"{path} is no kubeconfig file: an entry lacks {error}") from error


def _chosen(configs: Sequence[KubeConfig], files: Sequence[Path], name: str | None) -> SingleConfig:
    """The context of that name, or the current one, out of several files."""
    where = ":".join(map(str, files)) or "no file"
    name = name or next((config.current_context for config in configs if config.current_context), None)
    if name is None:
        raise Unusable(f"{where} names no current context; say which with --context, or `kubectl config use-context`")
    for config in configs:
        if (context := config.contexts.get(name)) is None:
            continue
        if context.cluster not in config.clusters or (context.user and context.user not in config.users):
            raise Unusable(f"{where}: context {name!r} is of a cluster or user that its file does not have")
        chosen = config.get(name)
        assert chosen is not None  # noqa: S101  # it is there
        return chosen
    known = ", ".join(sorted({each for config in configs for each in config.contexts})) or "none"
    raise Unusable(f"{where} has no context {name!r}; there are: {known}")


def _tls(config: SingleConfig, user: User) -> ssl.SSLContext:
    context: ssl.SSLContext = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
    return context


# -- programs that give credentials ------------------------------------------------------------------------------------


async def _credential(program: UserExec, folder: Path | None) -> tuple[str, float]:
    """A token, and for how many seconds it holds. Raises Unusable."""
    if program.apiVersion not in _EXEC_VERSIONS:
        raise Unusable(f"credentials of {program.command}: {program.apiVersion} is not one of {_EXEC_VERSIONS}")
    said = await _run(program, folder)
    try:
        status = json.loads(said)["status"]
        token, until = status.get("token"), status.get("expirationTimestamp")
        lasts_s = _FOR_EVER if until is None else datetime.fromisoformat(until).timestamp() - time.time()
    except (ValueError, KeyError, TypeError, AttributeError):
        # What it wrote may be half a credential: it is not shown.
        raise Unusable(f"{program.command} wrote no ExecCredential with a status; run it by hand to see") from None
    if not isinstance(token, str) or not token:
        raise Unusable(f"{program.command} gave no token; client certificates of such programs are not supported")
    # One that lasts for less than a while is not asked for anew with each request.
    return token, max(lasts_s - EARLY_S, lasts_s / 2, 1.0)


async def _run(program: UserExec, folder: Path | None) -> bytes:
    about: dict[str, Any] = {
        "apiVersion": program.apiVersion,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = os.environ | {"KUBERNETES_EXEC_INFO": json.dumps(about)}
    environment |= {variable.name: variable.value for variable in program.env or ()}
    # A name with a slash is a path, relative to the file; any other is looked for in PATH.
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
        raise Unusable(f"cannot run {program.command}, which the kubeconfig file names: {error}{hint}") from error
    try:
        async with asyncio.timeout(PROGRAM_WITHIN_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        raise Unusable(f"{program.command} gave no credential within {PROGRAM_WITHIN_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Unusable(
            f"{program.command} exited with {process.returncode}: {complaint.decode(errors='replace').strip()}"
        )
    return said
