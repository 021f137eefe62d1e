"""Identities in a test cluster: an authority, the certificates that it signs, and kubeconfig files with them."""

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """Certificate authority of the cluster's parts and users; its key is a file that only this user can read."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def create(self) -> None:
        """Create the authority's certificate, and the key pair of service accounts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ganger-testcluster")])
        builder = _set_common_fields(x509.CertificateBuilder(), name, name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        write_secret(self.folder / "ca-key.pem", _pem(key))
        account_key = ec.generate_private_key(ec.SECP256R1())
        write_secret(self.folder / "service-account-key.pem", _pem(account_key))

    def issue(self, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Return certificate and key, as PEM, of a user in some groups, or of a server at some addresses."""
        authority_key = serialization.load_pem_private_key((self.folder / "ca-key.pem").read_bytes(), password=None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _set_common_fields(x509.CertificateBuilder(), subject, issuer, key.public_key())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)

    def issue_files(self, file: str, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()) -> None:
        """Issue a certificate as FILE.pem and FILE-key.pem."""
        certificate, key = self.issue(name, groups, addresses)
        (self.folder / f"{file}.pem").write_bytes(certificate)
        write_secret(self.folder / f"{file}-key.pem", key)

    def write_kubeconfig(self, path: Path, url: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig of `user` for the API server at `url`."""
        certificate, key = self.issue(user, groups)
        credentials = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        server = {"server": url, "certificate-authority-data": _base64(self.certificate.read_bytes())}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testcluster", "cluster": server}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "testcluster", "context": {"cluster": "testcluster", "user": user}}],
            "current-context": "testcluster",
        }
        write_secret(path, json.dumps(config, indent=1).encode())
        return path


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _set_common_fields(
    builder: x509.CertificateBuilder, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = builder.subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + VALID)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The API server does not accept the public half of a PKCS 8 key for verifying tokens.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
