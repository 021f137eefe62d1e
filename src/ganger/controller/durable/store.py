"""Durable store of a controller: files by name, in a directory (a volume) or in a bucket of an S3-compatible service.

Methods block, so they are called on threads. Every error is a StoreError, whose text has no credentials: they come from
the environment, where the library finds them, and a URL with some is refused.
"""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from ganger.settings import HomeError, make_private

if TYPE_CHECKING:
    from obstore.store import S3Store

S3: Final = "s3"
STORE_EXTRA: Final = "pip install 'ganger[s3]'"
TIMEOUT_S: Final = 10
RANGE_BYTES: Final = 8 << 20
"""Size of a part of a file in a bucket that is read within TIMEOUT_S; larger files are read in several parts."""
MAX_RETRIES: Final = 1
"""The controller tries again by itself."""
MAX_UNPACKED_BYTES: Final = 256 << 20
"""Size beyond which a file is not one that a controller has written."""
_OPTIONS: Final = ("endpoint", "region")
_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_DRAFT: Final = ".draft-"


class StoreError(Exception):
    """The store cannot be used. `next` says what to do about it."""

    def __init__(self, detail: str, next: str) -> None:
        super().__init__(detail)
        self.next = next


class StoredFile(NamedTuple):
    """A file in a store: its name, its size and when it was written."""

    name: str
    size_bytes: int
    written_ms: int


class Store(Protocol):
    """Files by name: segments separated by slashes, none of which begins with a dot. Every method raises StoreError."""

    def put(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""

    def list(self, folder: str) -> list[StoredFile]:
        """Return the files below a folder, by name."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""


def open_store(location: str) -> Store:
    """Return the store at a directory or a URL. Raises StoreError if it cannot be one."""
    if "://" not in location:
        return DirectoryStore(Path(location))
    return BucketStore(location)


def unpacked(store: Store, file: StoredFile) -> bytes:
    """Return the content of a file in gzip format, empty if it is gone.

    Raises StoreError, and ValueError for a file that is damaged or too large.
    """
    if file.size_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(f"{file.name} has {file.size_bytes} bytes")
    content = store.get(file.name) or b""
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            unpacked = packed.read(MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file.name}: {error}") from None
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise ValueError(f"{file.name} has more than {MAX_UNPACKED_BYTES} bytes unpacked")
    return unpacked


class DirectoryStore:
    """A store in a directory, private to this user, which is created."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_absolute():
            raise StoreError(f"{directory} is not an absolute path", "name a directory: /PATH, or a URL: s3://BUCKET")
        self._directory = directory

    def put(self, name: str, content: bytes) -> None:
        path = self._directory / name
        with self._errors(name):
            make_private(self._directory)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with NamedTemporaryFile(dir=path.parent, prefix=_DRAFT, delete=False) as draft:
                try:
                    draft.write(content)
                    draft.flush()
                    os.fsync(draft.fileno())
                    Path(draft.name).replace(path)
                except OSError:
                    Path(draft.name).unlink(missing_ok=True)
                    raise

    def get(self, name: str) -> bytes | None:
        with self._errors(name):
            try:
                return (self._directory / name).read_bytes()
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[StoredFile]:
        with self._errors(folder):
            return sorted(self._files(self._directory / folder))

    def delete(self, name: str) -> None:
        path = self._directory / name
        with self._errors(name):
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty
                path.parent.rmdir()

    def _files(self, folder: Path) -> Iterator[StoredFile]:
        for parent, _, names in os.walk(folder, onerror=_raise_unless_missing):
            for path in (Path(parent, name) for name in names if not name.startswith(_DRAFT)):
                with suppress(FileNotFoundError):  # it was deleted in the meantime
                    status = path.lstat()
                    name = path.relative_to(self._directory).as_posix()
                    if stat.S_ISREG(status.st_mode):  # a controller writes neither links nor pipes
                        yield StoredFile(name, status.st_size, status.st_mtime_ns // 1_000_000)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except HomeError as error:
            raise StoreError(str(error), f"ls -ld {self._directory}") from None
        except OSError as error:
            detail = f"{self._directory / name}: {error.strerror or error}"
            raise StoreError(detail, f"df -h {self._directory}; ls -ld {self._directory}") from None


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class BucketStore:
    """A store in a bucket, `s3://BUCKET/FOLDER?endpoint=URL&region=NAME`. Credentials come as for the AWS tools."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise StoreError(
                "the URL of the store contains credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme != S3 or not parts.netloc or options.keys() - {*_OPTIONS} or parts.fragment:
            raise StoreError(f"{url} is not the URL of a store", "s3://BUCKET/FOLDER?endpoint=https://HOST&region=NAME")
        self._url, self._folder = f"{S3}://{parts.netloc}{parts.path}", parts.path.strip("/")
        self._bucket = self._open(parts.netloc, options)

    def put(self, name: str, content: bytes) -> None:
        import obstore

        with self._errors(name):
            obstore.put(self._bucket, name, content)

    def get(self, name: str) -> bytes | None:
        import obstore
        from obstore.exceptions import NotFoundError

        with self._errors(name):
            try:
                whole = obstore.get(self._bucket, name)
                size_bytes, version = whole.meta["size"], whole.meta["e_tag"]
                if size_bytes <= RANGE_BYTES:
                    return bytes(whole.bytes())
                del whole  # its connection is closed
                content = bytearray()
                while len(content) < size_bytes:
                    part = (len(content), min(len(content) + RANGE_BYTES, size_bytes))
                    content += obstore.get(self._bucket, name, options={"range": part, "if_match": version}).bytes()
                return bytes(content)
            except (NotFoundError, FileNotFoundError):
                return None

    def list(self, folder: str) -> list[StoredFile]:
        import obstore

        with self._errors(folder):
            pages = obstore.list(self._bucket, prefix=folder)
            return sorted(
                StoredFile(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))
                for page in pages
                for item in page
            )

    def delete(self, name: str) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        with self._errors(name), suppress(NotFoundError, FileNotFoundError):
            obstore.delete(self._bucket, name)

    def _open(self, bucket: str, options: Any) -> "S3Store":
        try:
            from obstore.store import S3Store
        except ModuleNotFoundError:
            raise StoreError("what ganger needs for a bucket is not installed: obstore", STORE_EXTRA) from None
        timeout = timedelta(seconds=TIMEOUT_S)
        retries: Any = {"max_retries": MAX_RETRIES, "retry_timeout": timeout}
        client: Any = {"timeout": timeout, "allow_http": True}
        with self._errors(""):
            return S3Store(
                bucket, prefix=self._folder or None, config=options, client_options=client, retry_config=retries
            )

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            text = " ".join(str(error).split("\n\n", 1)[0].split())
            for secret in filter(None, map(os.environ.get, _SECRETS)):
                text = text.replace(secret, "...")
            detail = f"{self._url}/{name}: {type(error).__name__}: {text[:300]}"
            raise StoreError(
                detail, "check the bucket, its endpoint, and AWS_ACCESS_KEY_ID of the controller"
            ) from None
