"""A certificate for 127.0.0.1 and the authority that signed it, created for each server with TLS."""

import ssl

import trustme


def make_certificate() -> tuple[ssl.SSLContext, str]:
    """Return the server's TLS context, and the authority's certificate as PEM, which clients trust."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context, authority.cert_pem.bytes().decode()
