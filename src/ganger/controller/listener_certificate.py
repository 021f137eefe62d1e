"""Certificate and token key of the launcher listener.

They are created once, beside the controller's other files, and kept: launchers that are running must recognize the
listener again.
"""

from pathlib import Path

from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint
from ganger.server.tls_certificate import self_signed
from ganger.settings import make_private, read_key


def launcher_endpoint(folder: Path, address: str) -> tuple[LauncherEndpoint, tuple[Path, Path]]:
    """Return the endpoint at HOST:PORT, and the files of its certificate and private key. Raises OSError."""
    host = address.rpartition(":")[0]
    make_private(folder)
    certificate, private = folder / f"{host}.crt", folder / f"{host}.key"
    key = read_key(folder / "tokens.key")
    if not certificate.exists():
        certificate_pem, private_pem = self_signed([host])
        _write_private(private, private_pem)
        _write_private(certificate, certificate_pem)
    endpoint = LauncherEndpoint(address=address, certificate=certificate.read_text(), key=key)
    return endpoint, (certificate, private)


def _write_private(path: Path, content: bytes) -> None:
    """Write a private file atomically."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(0o600)
    draft.write_bytes(content)
    draft.replace(path)
