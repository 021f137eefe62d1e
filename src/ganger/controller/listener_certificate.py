"""Certificate and token key of the launcher listener.

They are created once, beside the controller's other files, and kept: launchers that are running must recognize the
listener again.
"""

import datetime
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint
from ganger.settings import make_private, read_key

VALID_DAYS: Final = 3650


def launcher_endpoint(folder: Path, address: str) -> tuple[LauncherEndpoint, tuple[Path, Path]]:
    """Return the endpoint at HOST:PORT, and the files of its certificate and private key. Raises OSError."""
    host = address.rpartition(":")[0]
    make_private(folder)
    certificate, private = folder / f"{host}.crt", folder / f"{host}.key"
    key = read_key(folder / "tokens.key")
    if not certificate.exists():
        certificate_pem, private_pem = _self_signed(host)
        _write_private(private, private_pem)
        _write_private(certificate, certificate_pem)
    endpoint = LauncherEndpoint(address=address, certificate=certificate.read_text(), key=key)
    return endpoint, (certificate, private)


def _self_signed(host: str) -> tuple[bytes, bytes]:
    """Return a self-signed certificate for a host and its key, as PEM."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ganger")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    private_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, content: bytes) -> None:
    """Write a private file atomically."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(0o600)
    draft.write_bytes(content)
    draft.replace(path)
