"""Where ganger keeps its state and what it takes from its surroundings: the only reader of environment variables.

Called by `wiring` and by every face that a person starts. Standard library only and cheap to import: the command line
reads it before it prints a line.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganger.model.units import DAY_MS, GIB_BYTES, parse_bytes, parse_duration_ms

SOCKET_PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux: sun_path of unix(7), less the terminating zero."""

HOME: Final = "GANGER_HOME"
CONTROLLER_NAMESPACE: Final = "GANGER_CONTROLLER_NAMESPACE"
INSTALLED: Final = "ganger-system"
"""The namespace that `ganger install` puts a controller into, unless another is named."""
LAUNCHER: Final = "launcher-*.pyz"
"""The file name of the zipapp that starts every task (`launcher.build_archive`)."""
TRAVELS: Final = frozenset({"PATH", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG"})
TRAVELS_BY_PREFIX: Final = ("CONDA_", "LC_")

_NETWORK: Final = (
    "nfs",
    "cifs",
    "smb",
    "fuse.sshfs",
    "lustre",
    "beegfs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "gpfs",
    "9p",
)
"""Beginnings of the types of network file systems, as /proc/self/mounts has them."""


class HomeError(Exception):
    """The state directory cannot be used as it is. The text says why, `next` what to type."""

    def __init__(self, why: str, next: str = "set GANGER_HOME to a directory of yours") -> None:
        """Keep the two apart."""
        super().__init__(why)
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
        """Locked by the one server as long as it lives."""
        return self.path / "server.lock"

    @property
    def server_log(self) -> Path:
        """What the server prints."""
        return self.path / "server.log"

    @property
    def server_file(self) -> Path:
        """Who serves and where: JSON, present while a server runs."""
        return self.path / "server.json"

    @property
    def topology(self) -> Path:
        """The virtual nodes to show, if the user gave any."""
        return self.path / "topology.yaml"

    @property
    def settings_file(self) -> Path:
        """What the user wants otherwise: `keep` says what may stand in it."""
        return self.path / "settings.toml"

    @property
    def tokens(self) -> Path:
        """Hashes of the tokens that open the TCP listener."""
        return self.path / "tokens.json"

    @property
    def code(self) -> Path:
        """Snapshots of `code:` directories, by content."""
        return self.path / "code"

    @property
    def git(self) -> Path:
        """Repositories that code came from, as fetched last."""
        return self.path / "git"

    @property
    def secrets(self) -> Path:
        """Secrets that the user keeps here: one file each, 0600."""
        return self.path / "secrets"

    @property
    def jobs(self) -> Path:
        """One directory a job."""
        return self.path / "jobs"

    def socket(self, name: str) -> Path:
        """Where the socket `name` belongs: in the state directory, or, when that path is too long for a socket, in a
        private directory of this user under /tmp. XDG_RUNTIME_DIR will not do: it goes when the user logs out."""
        path = self.path / f"{name}.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        import hashlib

        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(f"/tmp/ganger-{os.getuid()}") / f"{digest}-{name}.sock"  # noqa: S108 - made 0700 and checked by make_private


def home(environ: Mapping[str, str]) -> Home:
    """The state directory by `environ`: GANGER_HOME, else ganger in XDG_STATE_HOME, else ~/.local/state/ganger."""
    if given := environ.get(HOME):
        return Home(Path(given).expanduser().absolute())
    state = environ.get("XDG_STATE_HOME")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return Home(base / "ganger")


class SettingsError(Exception):
    """The settings file says something that cannot be. The text says what, `next` what to type."""

    def __init__(self, why: str, next: str) -> None:
        """Keep the two apart."""
        super().__init__(why)
        self.next = next


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a server keeps by itself, the table [keep] of the settings file. None: without a limit ("always").

    rank_log_bytes: the log of one rank, also while it runs; logs_ms, logs_bytes: of jobs that have ended; code_ms:
    copies of code that no job in the listing has, and repositories, since they were used last; code_bytes: copies of
    code; events_ms, events_bytes: rows of the event log, and the file they are in.
    """

    rank_log_bytes: int | None = GIB_BYTES
    logs_ms: int | None = 90 * DAY_MS
    logs_bytes: int | None = 20 * GIB_BYTES
    code_ms: int | None = 30 * DAY_MS
    code_bytes: int | None = 10 * GIB_BYTES
    events_ms: int | None = 180 * DAY_MS
    events_bytes: int | None = 2 * GIB_BYTES


KEEP_KEYS: Final = {
    "rank_log_size": ("rank_log_bytes", "how large the log of one rank may grow: the middle of a longer one goes"),
    "logs": ("logs_ms", "how long the logs of a job are kept after its end"),
    "logs_size": ("logs_bytes", "how large all logs may grow together: those of the job that ended first go first"),
    "code": (
        "code_ms",
        "how long copies of code that no listed job has, and repositories, are kept after their last use",
    ),
    "code_size": ("code_bytes", "how large all copies of code may grow together: those that no live job has go"),
    "events": ("events_ms", "how long rows of the event log are kept"),
    "events_size": ("events_bytes", "how large the event log may grow"),
}
"""Key of [keep] -> (field of `Keep`, what it means). Values are as in a job: 90d, 20Gi; `always` is without a limit."""


def keep(home: Home) -> Keep:
    """What the settings file says is to be kept; without one, the defaults. BadSettings says what is wrong with it."""
    import tomllib

    path = home.settings_file
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Keep()
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{path} cannot be read: {error}", f"correct it, or move it away: mv {path} {path}.old"
        ) from None
    table = found.pop("keep", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: keep is no table", "write a line [keep], and the settings below it")
    unknown = [*found, *(f"keep.{key}" for key in table if key not in KEEP_KEYS)]
    if unknown:
        raise SettingsError(f"{path}: there is no setting {unknown[0]}", f"there are keep.{', keep.'.join(KEEP_KEYS)}")
    return Keep(**{KEEP_KEYS[key][0]: _limit(path, key, value) for key, value in table.items()})


def _limit(path: Path, key: str, value: object) -> int | None:
    if value == "always":
        return None
    try:
        return parse_duration_ms(str(value)) if KEEP_KEYS[key][0].endswith("_ms") else parse_bytes(str(value))
    except ValueError as error:
        raise SettingsError(f"{path}: keep.{key}: {error}", 'write it as in `logs = "90d"`, or "always"') from None


def make_private(directory: Path) -> None:
    """Make `directory` with mode 0700, or see that it is one. BadHome when others could read or change its files."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(directory.iterdir()):
            directory.chmod(0o700)
        owners = {directory.lstat().st_uid, directory.stat().st_uid}
        mode = directory.stat().st_mode
    except (FileExistsError, NotADirectoryError):
        raise HomeError(f"{directory} cannot be a directory: a file is in the way") from None
    except OSError as error:
        raise HomeError(f"cannot use {directory}: {error.strerror}") from None
    if owners != {os.getuid()}:
        raise HomeError(f"{directory} belongs to another user")
    if mode & 0o077:
        raise HomeError(f"{directory} is open to other users", f"chmod 700 {directory}")


def network_filesystem(path: Path) -> str | None:
    """Type of the network file system that `path` is on, or None when it is on a disk of this machine. SQLite's log in
    WAL mode needs memory shared between processes, which no network file system gives (sqlite.org/wal.html)."""
    try:
        kind = filesystem(path.resolve(), Path("/proc/self/mounts").read_text())
    except OSError:
        return None
    return kind if kind.startswith(_NETWORK) else None


def filesystem(path: Path, mounts: str) -> str:
    """Type of the file system that `path` (absolute, no links) is on, by the text of /proc/self/mounts."""
    kind, depth = "", 0
    for _, place, found, *_ in (line.split(" ") for line in mounts.splitlines()):
        point = Path(place.encode().decode("unicode_escape"))
        # The deepest mount point around it; of two on the same place the later one hides the other.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = found, len(point.parts)
    return kind


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's environment goes with a job: where programs and libraries are, home and locale. No more:
    a job must not depend on what happened to be set, and secrets stay where they are."""
    found = {name: value for name, value in environ.items() if name in TRAVELS or name.startswith(TRAVELS_BY_PREFIX)}
    return _outside_a_job(found)


def for_server(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's environment goes to a server that it starts. One that a job's process starts is not part of
    that job: it must not carry its mark, nor end with it."""
    return _outside_a_job({name: environ[name] for name in environ if name == HOME or not name.startswith("GANGER_")})


def _outside_a_job(environ: dict[str, str]) -> dict[str, str]:
    """Without the launcher's zipapp, which every process of a job has on its PYTHONPATH: it would stand before what is
    installed, as a part of it."""
    if "PYTHONPATH" not in environ:
        return environ
    entries = environ["PYTHONPATH"].split(os.pathsep)
    kept = [entry for entry in entries if not Path(entry).match(LAUNCHER)]
    rest = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return rest | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})


def controller_namespace(environ: Mapping[str, str]) -> str:
    """Where the controller of a Kubernetes cluster is, for whoever asks it."""
    return environ.get(CONTROLLER_NAMESPACE) or INSTALLED


def wants_colour(environ: Mapping[str, str]) -> bool:
    """Whether colours are welcome, by the NO_COLOR convention (no-color.org): set and not empty means no."""
    return not environ.get("NO_COLOR")
