"""Credentials in the URL of a repository are refused, and never quoted."""

import pytest

from ganger.spec import text_fields
from tests.spec.test_errors import errors


@pytest.mark.parametrize(
    "url",
    [
        "https://me:S3CRET@a.b/c",
        "https://S3CRET@a.b/c",
        "HTTPS://me:S3CRET@a.b/c",
        "http://me:S3CRET@a.b/c",
        "https://me:S3C/S3CRET@a.b/c",
        "https://me:S3C@S3CRET@a.b/c",
        "https://a.b/c?private_token=S3CRET",
        "ssh://me:S3CRET@a.b/c",
        "git://S3CRET@a.b/c",
        "https:/me:S3CRET@a.b/c",
        "me:S3CRET@a.b:c",
        "https://me:S3CRET@a.b/c\\u00e9",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_quoted(url: str) -> None:
    for code in (f'code: {{git: "{url}"}}', f'code: "{url}"'):
        if code.startswith("code: {") or "://" in url:
            text = "\n".join(map(str, errors(f"run: x\n{code}\n")))
            assert "URL" in text
            assert "S3C" not in text


@pytest.mark.parametrize("url", ["git@a.b:c@d", "ssh://git@a.b/c", "file:///a/b@c?d", "https://a.b:8443/c/d.git"])
def test_a_login_of_ssh_is_no_credential(url: str) -> None:
    assert text_fields.read_git_url(url) == url
