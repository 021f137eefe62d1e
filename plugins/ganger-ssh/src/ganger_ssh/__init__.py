"""Backend of ganger for several machines that are reached by ssh."""

from ganger_ssh.ssh_backend import SshBackend

__version__ = "0.1.0"
NAME = "ssh"
create = SshBackend
