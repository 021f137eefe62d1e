"""The state directory and the settings: the only module that reads environment variables.

Standard library only and cheap to import: the command line reads it before it prints a line.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ganger.errors import DISK_FULL
from ganger.model.units import DAY_MS, GIB_BYTES, parse_bytes, parse_duration_ms

SOCKET_PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux: sun_path of unix(7), less the terminating zero."""

KEY_BYTES: Final = 32
HOME: Final = "GANGER_HOME"
SERVER: Final = "GANGER_SERVER"
CONTROLLER_NAMESPACE: Final = "GANGER_CONTROLLER_NAMESPACE"
LOG: Final = "GANGER_LOG"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
DEFAULT_CONTROLLER_NAMESPACE: Final = "ganger-system"
"""The namespace that `ganger install` puts a controller into, unless another is named."""
LAUNCHER_PATTERN: Final = "launcher-*.pyz"
"""The file name of the zipapp that starts every task (`launcher.build_archive`)."""
JOB_VARIABLES: Final = frozenset({"PATH", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG"})
JOB_VARIABLE_PREFIXES: Final = ("CONDA_", "LC_")


class HomeError(Exception):
    """The state directory cannot be used. The text is the reason, `next` what to type."""

    def __init__(self, reason: str, next: str = "set GANGER_HOME to a directory of yours") -> None:
        """Keep the two apart."""
        super().__init__(reason)
        self.next = next


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory of one user's server, and the files in it (docs/reference/state-directory.md)."""

    path: Path

    @property
    def database(self) -> Path:
        """The event log and its projections."""
        return self.path / "ganger.db"

    @property
    def server_lock(self) -> Path:
        """Lock file, held by the one server while it runs."""
        return self.path / "server.lock"

    @property
    def server_log(self) -> Path:
        """Output of the server."""
        return self.path / "server.log"

    @property
    def server_file(self) -> Path:
        """The running server and its address: JSON, present while a server runs."""
        return self.path / "server.json"

    @property
    def topology(self) -> Path:
        """The user's definition of virtual nodes, if any."""
        return self.path / "topology.yaml"

    @property
    def preempted_nodes(self) -> Path:
        """Nodes that were in service when the cloud took the machine back; present until they are again."""
        return self.path / "preempted-nodes.json"

    @property
    def telemetry(self) -> Path:
        """Figures of this machine and its GPUs over a month."""
        return self.path / "telemetry.db"

    @property
    def sent_incidents(self) -> Path:
        """Ids of incidents that the webhook has taken: JSON."""
        return self.path / "sent-incidents.json"

    @property
    def settings_file(self) -> Path:
        """The user's settings, read by `read_retention_limits`."""
        return self.path / "settings.toml"

    @property
    def tokens(self) -> Path:
        """Hashes of the tokens for the TCP listener."""
        return self.path / "tokens.json"

    @property
    def certificate(self) -> Path:
        """The certificate of the TCP listener beyond loopback: made by the server, or an administrator's."""
        return self.path / "tls.crt"

    @property
    def certificate_key(self) -> Path:
        """The private key of that certificate."""
        return self.path / "tls.key"

    @property
    def code(self) -> Path:
        """Snapshots of `code:` directories, by content."""
        return self.path / "code"

    @property
    def git(self) -> Path:
        """Cached repositories that code came from."""
        return self.path / "git"

    @property
    def secrets(self) -> Path:
        """The user's secrets: one file each, mode 0600."""
        return self.path / "secrets"

    @property
    def jobs(self) -> Path:
        """One directory per job."""
        return self.path / "jobs"

    def socket(self, name: str) -> Path:
        """Return the path of the socket `name`: in the state directory, if the path is short enough for a socket.

        Otherwise it is in a private directory of this user under /tmp. XDG_RUNTIME_DIR will not do: it is removed when
        the user logs out.
        """
        path = self.path / f"{name}.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        import hashlib

        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(f"/tmp/ganger-{os.getuid()}") / f"{digest}-{name}.sock"  # noqa: S108 - made 0700 and checked by make_private


def home(environ: Mapping[str, str]) -> Home:
    """Return the state directory: GANGER_HOME, else ganger in XDG_STATE_HOME, else ~/.local/state/ganger."""
    if explicit := environ.get(HOME):
        return Home(Path(explicit).expanduser().absolute())
    state = environ.get("XDG_STATE_HOME")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return Home(base / "ganger")


class SettingsError(Exception):
    """The settings file is invalid. The text is the reason, `next` what to type."""

    def __init__(self, reason: str, next: str) -> None:
        """Keep the two apart."""
        super().__init__(reason)
        self.next = next


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Limits of what a server keeps: the table [keep] of the settings file. None is unlimited ("always").

    rank_log_bytes: the log of one rank, also while it runs.
    logs_ms, logs_bytes: logs of ended jobs.
    code_ms: copies of code that no listed job uses, and repositories, since their last use.
    code_bytes: copies of code.
    events_ms, events_bytes: rows of the event log, and the size of its file.
    """

    rank_log_bytes: int | None = GIB_BYTES
    logs_ms: int | None = 90 * DAY_MS
    logs_bytes: int | None = 20 * GIB_BYTES
    code_ms: int | None = 30 * DAY_MS
    code_bytes: int | None = 10 * GIB_BYTES
    events_ms: int | None = 180 * DAY_MS
    events_bytes: int | None = 2 * GIB_BYTES


_BACKEND, _NOTICES, _AGENT, _WEBHOOK = "backend", "notices", "agent", "incident_webhook"
RETENTION_KEYS: Final = {
    "rank_log_size": ("rank_log_bytes", "maximum size of the log of one rank: the middle of a longer one is dropped"),
    "logs": ("logs_ms", "how long the logs of a job are kept after its end"),
    "logs_size": ("logs_bytes", "maximum size of all logs: those of the job that ended first are removed first"),
    "code": (
        "code_ms",
        "how long copies of code that no listed job uses, and repositories, are kept after their last use",
    ),
    "code_size": ("code_bytes", "maximum size of all copies of code: those that no live job uses are removed"),
    "events": ("events_ms", "how long rows of the event log are kept"),
    "events_size": ("events_bytes", "maximum size of the event log"),
}
"""Key of [keep] -> (field of `RetentionLimits`, meaning). Values are as in a job: 90d, 20Gi; `always` is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """The backend that the settings file names with `backend`, and its own table there."""

    name: str
    table: Mapping[str, Any]


def read_backend_settings(home: Home) -> BackendSettings | None:
    """Return the backend of the settings file; None for this machine. Raise SettingsError when it is invalid."""
    document = _read_settings(home.settings_file)
    name = document.get(_BACKEND)
    if name is None:
        return None
    table = document.get(str(name), {})
    if not isinstance(name, str) or not isinstance(table, dict):
        raise SettingsError(
            f"{home.settings_file}: backend is not a name with a table of settings", 'write it as in `backend = "ssh"`'
        )
    return BackendSettings(name=name, table=table)


def read_notices_setting(home: Home) -> str:
    """Return whose notices of this machine's end to read, see `agent.notice_watch`; `auto` by default.

    Raise SettingsError when the file is invalid.
    """
    return str(_read_settings(home.settings_file).get(_NOTICES, "auto"))


AGENT_KEYS: Final = {
    "proc": "as `/proc`",
    "sys": "as `/sys`",
    "mounts": "the mounts, as `/proc/self/mountinfo`",
    "files": "the root below which mounts are",
    "kernel_log": "as `/dev/kmsg`; also a file or a FIFO of such records",
    "nvml_library": "the driver's `libnvidia-ml.so.1`",
    "dcgm_exporter": "URL of the metrics page of a DCGM exporter, from which profiling fields are read",
    "rules": "file of this site's rules of checks",
}
"""Key of [agent] -> meaning: where the agent of this machine reads."""


def read_agent_settings(home: Home) -> Mapping[str, str]:
    """Return where the agent of this machine reads, by AGENT_KEYS. Raise SettingsError when the file is invalid."""
    path = home.settings_file
    table = _read_settings(path).get(_AGENT, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: agent is not a table", "write a line [agent], and the settings below it")
    for key, value in table.items():
        if key not in AGENT_KEYS:
            raise SettingsError(
                f"{path}: there is no setting agent.{key}", f"settings: agent.{', agent.'.join(AGENT_KEYS)}"
            )
        if not isinstance(value, str) or not value or "\0" in value:
            raise SettingsError(
                f"{path}: agent.{key} is not a path or a URL", f'write it as in `{key} = "/host/{key}"`'
            )
    return table


def read_incident_webhook(home: Home) -> str | None:
    """Return the URL that incidents are sent to, None for none. Raise SettingsError when the file is invalid."""
    url = _read_settings(home.settings_file).get(_WEBHOOK)
    if url is None:
        return None
    if not isinstance(url, str) or not re.fullmatch(r"https?://[\x21-\x7e]+", url):
        example = f'{_WEBHOOK} = "https://hooks.example.org/incidents"'
        raise SettingsError(
            f"{home.settings_file}: {_WEBHOOK} is not an http or https URL", f"write it as in {example}"
        )
    return url


def read_retention_limits(home: Home) -> RetentionLimits:
    """Return the retention limits of the settings file, else the defaults. Raise SettingsError when it is invalid."""
    path = home.settings_file
    document = _read_settings(path)
    if (backend := document.pop(_BACKEND, None)) is not None:
        document.pop(str(backend), None)  # the backend's own
    document.pop(_NOTICES, None)
    document.pop(_AGENT, None)
    document.pop(_WEBHOOK, None)
    table = document.pop("keep", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: keep is not a table", "write a line [keep], and the settings below it")
    unknown = [*document, *(f"keep.{key}" for key in table if key not in RETENTION_KEYS)]
    if unknown:
        raise SettingsError(
            f"{path}: there is no setting {unknown[0]}",
            f"settings: backend, notices, agent, incident_webhook, keep.{', keep.'.join(RETENTION_KEYS)}",
        )
    return RetentionLimits(**{RETENTION_KEYS[key][0]: _limit(path, key, value) for key, value in table.items()})


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the settings file; an empty one if there is none."""
    import tomllib

    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{path} cannot be read: {error}", f"correct it, or move it away: mv {path} {path}.old"
        ) from None


def _limit(path: Path, key: str, value: object) -> int | None:
    if value == "always":
        return None
    try:
        return parse_duration_ms(str(value)) if RETENTION_KEYS[key][0].endswith("_ms") else parse_bytes(str(value))
    except ValueError as error:
        raise SettingsError(f"{path}: keep.{key}: {error}", 'write it as in `logs = "90d"`, or "always"') from None


def make_private(directory: Path) -> None:
    """Make `directory` with mode 0700, or check that it is private.

    Raise HomeError when other users could read or change its files, or exchange it for another directory: below /tmp
    any user may have made it, or a link in its place. Until it is known to be this user's, it is not changed.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry, parent_mode = directory.lstat(), directory.parent.stat().st_mode
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise HomeError(f"{directory} cannot be a directory: a file is in the way") from None
    except OSError as error:
        if error.errno in DISK_FULL:
            remedy = f"free some space on that disk: df -h {directory.parent}"
            raise HomeError(f"cannot use {directory}: {error.strerror}", remedy) from None
        raise HomeError(f"cannot use {directory}: {error.strerror}") from None
    try:
        if {entry.st_uid, os.fstat(fd).st_uid} != {os.getuid()}:
            raise HomeError(f"{directory} belongs to another user")
        if stat.S_ISLNK(entry.st_mode) and parent_mode & 0o022:
            raise HomeError(f"{directory} is a link, in a directory where other users may write", f"ls -l {directory}")
        if not os.listdir(fd):  # noqa: PTH208 - a descriptor, not a path
            os.fchmod(fd, 0o700)
        if os.fstat(fd).st_mode & 0o077:
            raise HomeError(f"{directory} is open to other users", f"chmod 700 {directory}")
    except OSError as error:
        raise HomeError(f"cannot use {directory}: {error.strerror}") from None
    finally:
        os.close(fd)


def read_key(path: Path) -> bytes:
    """Return the secret key in a file, which is created once, for this user only. Raises OSError."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.draft")
        draft.touch(0o600)
        draft.write_bytes(os.urandom(KEY_BYTES))
        draft.replace(path)
    return path.read_bytes()


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the caller's environment that goes with a job.

    That is where programs and libraries are, home and locale. No more: a job must not depend on what happened to be
    set, and secrets stay where they are.
    """
    variables = {
        name: value
        for name, value in environ.items()
        if name in JOB_VARIABLES or name.startswith(JOB_VARIABLE_PREFIXES)
    }
    return _without_launcher(variables)


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the caller's environment that goes to a server started by the caller.

    A server started by a process of a job is not part of that job: it must not carry the job's variables, nor end with
    it.
    """
    return _without_launcher(
        {name: environ[name] for name in environ if name in (HOME, LOG) or not name.startswith("GANGER_")}
    )


def _without_launcher(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment without the launcher's zipapp on PYTHONPATH, which every process of a job has.

    It would shadow the installed package, of which it is a part.
    """
    if "PYTHONPATH" not in environ:
        return environ
    entries = environ["PYTHONPATH"].split(os.pathsep)
    remaining = [entry for entry in entries if not Path(entry).match(LAUNCHER_PATTERN)]
    others = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return others | ({"PYTHONPATH": os.pathsep.join(remaining)} if remaining else {})


def server(environ: Mapping[str, str]) -> str | None:
    """Return the URL of the server on another machine that is used in place of this user's own; None: that one is."""
    return environ.get(SERVER) or None


def logins_file(environ: Mapping[str, str]) -> Path:
    """Return the file of `ganger login`: ganger/logins.json in XDG_CONFIG_HOME, else in ~/.config."""
    config = environ.get("XDG_CONFIG_HOME")
    base = Path(config) if config and Path(config).is_absolute() else Path.home() / ".config"
    return base / "ganger" / "logins.json"


def controller_namespace(environ: Mapping[str, str]) -> str:
    """Return the namespace of the controller of a Kubernetes cluster."""
    return environ.get(CONTROLLER_NAMESPACE) or DEFAULT_CONTROLLER_NAMESPACE


def log_level(environ: Mapping[str, str]) -> str:
    """Return the level from which a server, a controller or an agent logs. Raise SettingsError for an unknown one."""
    level = (environ.get(LOG) or "info").lower()
    if level not in LOG_LEVELS:
        raise SettingsError(f"{LOG}={level} is not a level of a log", f"set it to {', '.join(LOG_LEVELS)}, or unset it")
    return level.upper()


def wants_colour(environ: Mapping[str, str]) -> bool:
    """Return whether to use colours, by the NO_COLOR convention (no-color.org): set and not empty means no."""
    return not environ.get("NO_COLOR")
