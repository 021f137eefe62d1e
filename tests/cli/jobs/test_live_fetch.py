"""`ganger fetch` of a real job: what it brings, and what it refuses."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.client import Client
from ganger.client.client_errors import unreachable
from tests.cli.live import Live, live, place
from tests.rest.serving import ServerHome

__all__ = ["live", "place"]

SCRIPT = """
import os, pathlib
pathlib.Path("results/deep").mkdir(parents=True)
pathlib.Path("results/a.json").write_text("1")
pathlib.Path("results/deep/b.bin").write_bytes(bytes(range(256)) * 5000)
pathlib.Path("results/inside").symlink_to("a.json")
pathlib.Path("results/latest").symlink_to("deep")
pathlib.Path("results/loop").symlink_to("loop")
pathlib.Path("results/passwd").symlink_to("/etc/passwd")
os.mkfifo("results/fifo")
pathlib.Path("checkpoints").mkdir()
pathlib.Path("checkpoints/big").write_text("weights")
pathlib.Path(os.environ["GANGER_RUN_DIR"], "model.pt").write_text("model")
"""
WRITTEN = ["model.pt", "results/a.json", "results/deep/b.bin", "results/inside", "results/latest", "results/loop"]


@pytest.fixture(scope="module")
def job(place: ServerHome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run a job in a copy of its code."""
    code = tmp_path_factory.mktemp("code")
    (code / "job.py").write_text(SCRIPT)
    (code / "old.txt").write_text("from the repository")
    request = place.request(["python", "job.py"], name="writer", code=".", checkpoint={"dir": "checkpoints"})
    name: str = place.client.submit(request | {"directory": str(code)})["row"]["id"]
    place.until(name, "succeeded")
    return name


@pytest.fixture(autouse=True)
def no_drafts(live: Live) -> Iterator[None]:
    """Check that no temporary directory is left."""
    yield
    assert not list(Path().rglob(".ganger-fetch-*"))


def _files(folder: Path = Path()) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def test_everything_that_the_job_wrote(live: Live, job: str) -> None:
    result = live("fetch", job)
    assert (result.code, result.out.split()) == (0, [f"{job}/{name}" for name in WRITTEN])
    assert "results/passwd" in result.err
    assert _files(Path(job)) == WRITTEN
    assert Path(job, "results/deep/b.bin").read_bytes() == bytes(range(256)) * 5000
    assert Path(job, "results/inside").readlink() == Path("a.json")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.pt", ["model.pt"]),
        ("old.txt", ["old.txt"]),
        ("results/deep", ["deep/b.bin"]),
        ("results/deep/", ["deep/b.bin"]),
        ("checkpoints", ["checkpoints/big"]),
        ("results/inside", ["a.json"]),
        ("results/latest", ["deep/b.bin"]),
    ],
)
def test_a_path_comes_under_its_last_name(live: Live, job: str, path: str, expected: list[str]) -> None:
    assert live("fetch", job, path, "-o", "to/here").code == 0
    assert _files(Path("to/here")) == expected


@pytest.mark.parametrize(
    "path",
    [
        *("../../../../etc/passwd", "/etc/passwd", "results/passwd", "gone", "results/fifo/x", "results/fifo"),
        *("results/loop", "a" * 300, "\udcff"),
    ],
)
def test_no_path_leads_out_of_the_job(live: Live, job: str, path: str) -> None:
    result = live("fetch", job, path, "-o", "to")
    assert (result.code, _files()) == (3, [])
    assert f"has no '{path}' in ".replace("\udcff", "\ufffd") in result.err


def test_nothing_is_overwritten_unless_forced(live: Live, job: str) -> None:
    Path("deep").mkdir()
    Path("deep/b.bin").write_text("mine")
    result = live("fetch", job, "results/deep")
    assert (result.code, _files()) == (4, ["deep/b.bin"])
    assert "would overwrite: deep/b.bin" in result.err
    assert Path("deep/b.bin").read_text() == "mine"
    assert live("fetch", "--force", job, "results/deep").code == 0
    assert Path("deep/b.bin").stat().st_size == 256 * 5000


def test_a_job_in_place_has_its_output_directory_alone(live: Live) -> None:
    Path("job.py").write_text("import os; open(os.environ['GANGER_RUN_DIR'] + '/out', 'w'); open('beside', 'w')")
    name = live.submit("job.py")
    live.until(name, "succeeded")
    assert live("fetch", name).out == f"{name}/out\n"
    result = live("fetch", name, "beside")
    assert result.code == 3
    assert f"runs in place, without a copy of its code: its files are in {Path.cwd()}" in result.err


def test_a_hostile_archive_stays_in_its_directory(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, link in (("../out", ""), ("/tmp/ganger-absolute", ""), ("up", ".."), ("up/x", ""), ("good", "")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
            tar.addfile(member)
    monkeypatch.setattr(Client, "fetch", lambda *_: iter([archive.getvalue()]))
    result = live("fetch", "any", "path", "-o", "to/here")
    assert result.code == 0
    assert _files() == ["to/here/good", "to/here/tmp/ganger-absolute", "to/here/up/x"]
    assert "../out, up" in result.err


def test_a_hostile_server_cannot_choose_the_directory(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "fetch", lambda *_: iter([b""]))
    for name in ("../up", "/tmp/ganger-absolute", ".ssh", "a/../../up", ""):
        monkeypatch.setattr(Client, "job", lambda *_, name=name: {"row": {"id": name}})
        result = live("fetch", "any")
        assert (result.code, f"calls the job {name!r}" in result.err) == (2, True), name


def _member(name: str, kind: bytes, size: int, link: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, link
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (_member("hard", tarfile.LNKTYPE, 0, "missing"), "'missing' not found"),
        (_member("long", tarfile.XHDTYPE, 8 << 30), "'long' has an invalid size"),
        (_member("back", tarfile.REGTYPE, -1024), "'back' has an invalid size"),
        (_member("x", tarfile.XHDTYPE, 20) + b"999999999 path=a\n".ljust(512, b"\0") + _member("a", b"0", 0), "null"),
    ],
)
def test_a_broken_archive_is_reported(live: Live, monkeypatch: pytest.MonkeyPatch, archive: bytes, reason: str) -> None:
    monkeypatch.setattr(Client, "fetch", lambda *_: iter([archive + bytes(2048)]))
    result = live("fetch", "any", "path")
    assert (result.code, reason in result.err, _files()) == (2, True, [])


def test_a_stream_that_breaks_off_leaves_nothing(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[bytes]:
        yield _member("whole", b"0", 512) + bytes(512) + _member("torn", b"0", 9000) + bytes(512)
        raise unreachable("the server at x went away: IncompleteRead")

    monkeypatch.setattr(Client, "fetch", broken)
    result = live("fetch", "any", "path", "-o", "to")
    assert (result.code, _files()) == (2, [])
    assert "nothing was copied: the server broke off in torn: the server at x went away" in result.err
