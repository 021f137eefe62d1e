"""Archives of code: what was packed comes out, and a hostile archive writes nothing outside and fills no memory."""

import errno
import gzip
import io
import os
import resource
import tarfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ganger.client import ClientError
from ganger.client.remote import send_code
from ganger.code import packed_code
from ganger.code.code_snapshot import snapshot, snapshot_whole
from ganger.code.packed_code import pack, unpack
from ganger.engine.submit.received_code import ReceivedCode
from ganger.errors import RequestError

Entry = tuple[str, bytes, str | bytes]
"""Name; type; a link's target, or a file's content."""
FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def archive(*entries: Entry, format: int = tarfile.GNU_FORMAT, headers: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=format, pax_headers=headers) as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o755
            if isinstance(content, str):
                entry.linkname = content
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


def raw(*blocks: bytes) -> bytes:
    return gzip.compress(b"".join(blocks))


def header(name: str, kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def test_what_is_packed_comes_out_with_the_same_hash(tmp_path: Path) -> None:
    source, store, target = tmp_path / "source", tmp_path / "store", tmp_path / "target"
    (source / "a" / ("long" * 40)).mkdir(parents=True)
    (source / "a" / ("long" * 40) / "ö" / "deep").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "large").write_bytes(bytes(3_000_000))
    (source / "read-only").write_text("")
    (source / "read-only").chmod(0o444)
    (source / "a" / "link").symlink_to("../run.sh")
    digest = snapshot(source, store)
    packed = pack(store / digest)
    assert packed == pack(store / digest)
    target.mkdir()
    unpack(io.BytesIO(packed), target)
    assert snapshot_whole(target, store) == digest


HOSTILE: dict[str, Callable[[], bytes]] = {
    "an absolute path": lambda: archive(("/tmp/owned", FILE, b"x")),
    "a path upwards": lambda: archive(("../owned", FILE, b"x")),
    "a path upwards from within": lambda: archive(("a", FOLDER, ""), ("a/../../owned", FILE, b"x")),
    "a file through a link": lambda: archive(("out", LINK, "{outside}"), ("out/owned", FILE, b"x")),
    "a link over a file": lambda: archive(("a", FILE, b"x"), ("a", LINK, "{outside}")),
    "two files of one name": lambda: archive(("a", FILE, b"x"), ("a", FILE, b"y")),
    "a file as a folder": lambda: archive(("a", FILE, b"x"), ("a/b", FILE, b"y")),
    "a hard link": lambda: archive(("passwd", HARD, "/etc/passwd")),
    "a device": lambda: archive(("null", tarfile.CHRTYPE, "")),
    "a pipe": lambda: archive(("pipe", tarfile.FIFOTYPE, "")),
    "a header for all": lambda: archive(("a", FILE, b"x"), format=tarfile.PAX_FORMAT, headers={"path": "/tmp/owned"}),
    "a way back": lambda: raw(header("a", FILE, -1024), bytes(1024)),
    "a sparse file": lambda: raw(header("a", tarfile.GNUTYPE_SPARSE, 0), bytes(1024)),
    "a long name of 1 GiB": lambda: raw(header("a", tarfile.GNUTYPE_LONGNAME, 1 << 30), bytes(1 << 20)),
    "long names of long names": lambda: raw(
        *(header("a", tarfile.GNUTYPE_LONGNAME, 2) + b"b".ljust(512, b"\0"),) * 5000
    ),
    "the name of nothing": lambda: archive((".", FOLDER, "")),
    "half an archive": lambda: archive(("a", FILE, bytes(range(256)) * 4000))[:600],
    "no archive": lambda: b"PK\3\4 something else",
    "no tar": lambda: gzip.compress(b"something else" * 100),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    content = HOSTILE[name]()
    with pytest.raises(RequestError) as refused:
        unpack(io.BytesIO(content), target)
    assert refused.value.code == "bad_archive"
    assert {path.name for path in tmp_path.iterdir()} == {"target", "outside"}
    assert list(outside.iterdir()) == []
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside", "a/../../x"])
def test_a_link_that_leads_outside_is_not_stored(tmp_path: Path, link: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    unpack(io.BytesIO(archive(("link", LINK, link))), target)
    with pytest.raises(RequestError) as refused:
        snapshot_whole(target, tmp_path / "store")
    assert refused.value.code == "code_link_outside"


BOMBS: dict[str, Callable[[], bytes]] = {
    "many": lambda: archive(*((f"f{number}", FILE, b"") for number in range(12))),
    "large": lambda: archive(("zeros", FILE, bytes(3 << 20))),
    "hidden behind an entry": lambda: raw(header("a", FILE, 3 << 20), bytes(3 << 20), header("b", FILE, 0)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_may_not_grow_beyond_what_code_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(packed_code, "MAX_ENTRIES", 10)
    monkeypatch.setattr(packed_code, "_MAX_STREAM_BYTES", 2 << 20)
    content = BOMBS[name]()
    assert len(content) < 10_000
    with pytest.raises(RequestError) as refused:
        unpack(io.BytesIO(content), tmp_path)
    assert refused.value.code == "code_too_large"


def test_a_full_disk_is_reported_and_nothing_stays_there(tmp_path: Path) -> None:
    """A limit of the size of files fails as a full disk does: what fits is written."""
    received, before = ReceivedCode(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RequestError) as refused, received.new_file() as file:
            received.write(file, bytes(120_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.value.code, refused.value.status) == ("disk_full", 507)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = io.BytesIO(archive(*((f"folder-{number}", FOLDER, b"") for number in range(2_000))))
    entries: list[weakref.ref[tarfile.TarInfo]] = []

    def write(_tar: tarfile.TarFile, entry: tarfile.TarInfo, _path: Path) -> None:
        assert sum(earlier() is not None for earlier in entries[-100:]) <= 1  # the loop may still name the last one
        entries.append(weakref.ref(entry))

    monkeypatch.setattr(packed_code, "_write", write)
    unpack(many, tmp_path)
    assert len(entries) == 2_000


def test_packing_ends_where_the_archive_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(1 << 20))
    with pytest.raises(RequestError, match="more than 100Ki, packed") as refused:
        pack(tmp_path, 100 << 10)
    assert refused.value.code == "code_too_large"


def test_code_that_cannot_be_copied_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(send_code.tempfile, "TemporaryDirectory", full)
    request = {"directory": str(tmp_path), "spec": {"code": "."}, "environment": {}}
    with pytest.raises(ClientError, match="cannot be copied to be sent: No space left on device") as refused:
        send_code.send_code(cast(Any, None), request)
    assert (refused.value.code, refused.value.exit_code) == ("disk_full", 2)
