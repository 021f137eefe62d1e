"""Identities in a test cluster: an authority, the certificates that it signs, and kubeconfig files with them."""

import base64
import datetime
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme

VALID = datetime.timedelta(days=30)


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
        authority = trustme.CA(organization_name="ganger-testcluster")
        self.certificate.write_bytes(authority.cert_pem.bytes())
        write_secret(self.folder / "ca-key.pem", authority.private_key_pem.bytes())
        account_key = authority.issue_cert(common_name="service-accounts").private_key_pem.bytes()
        write_secret(self.folder / "service-account-key.pem", account_key)

    def issue(self, name: str, group: str | None = None, addresses: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Return certificate and key, as PEM, of a user in a group, or of a server at some addresses."""
        key = (self.folder / "ca-key.pem").read_bytes()
        authority = trustme.CA.from_pem(self.certificate.read_bytes(), key)
        # Go refuses a certificate whose alternative names are critical and empty; those of users are not looked at.
        names, ends = addresses or ("user.invalid",), datetime.datetime.now(datetime.UTC) + VALID
        issued = authority.issue_cert(*names, common_name=name, organization_name=group, not_after=ends)
        return issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()

    def issue_files(self, file: str, name: str, group: str | None = None, addresses: Sequence[str] = ()) -> None:
        """Issue a certificate as FILE.pem and FILE-key.pem."""
        certificate, key = self.issue(name, group, addresses)
        (self.folder / f"{file}.pem").write_bytes(certificate)
        write_secret(self.folder / f"{file}-key.pem", key)

    def write_kubeconfig(self, path: Path, url: str, user: str, group: str | None = None) -> Path:
        """Write a kubeconfig of `user` for the API server at `url`."""
        certificate, key = self.issue(user, group)
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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
