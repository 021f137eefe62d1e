"""Backend of ganger for several machines that are reached by ssh."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ganger.ports import Backend, BackendContext

__version__ = "0.1.0"
NAME: Final = "ssh"


def create(context: "BackendContext") -> "Backend":
    """Return the backend for the hosts in the settings. Raises SettingsError."""
    from ganger_ssh.ssh_backend import SshBackend

    return SshBackend(context)
