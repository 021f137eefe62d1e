"""Builds the zipapp that starts inside every task: the launcher, `ganger.train`, and nothing else of ganger.

Called by backends. It is named by its content, so it is made once for each version and interpreter and never changes
under a launcher that runs from it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import py_compile
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parents[1]
PACKAGES = ("launcher", "train")

MAIN = """\
import sys

from ganger.launcher.main import main

sys.exit(main(sys.argv))
"""

# This is the part of ganger that is in every task; the rest is found where ganger is installed. As
# pkgutil.extend_path, which takes 8 ms to import.
ELSEWHERE = """
import os
import sys

_elsewhere = [os.path.join(entry, __name__) for entry in sys.path]
__path__ += [path for path in _elsewhere if os.path.isfile(os.path.join(path, "__init__.py"))]
"""


def build(directory: Path, *, packed: bool = False) -> Path:
    """The zipapp in `directory`, made unless it is there. `packed`: three times smaller, for where it must travel, and
    some milliseconds slower to start. Raises OSError, also when this runs from a zipapp itself."""
    if not SOURCES.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "ganger is not installed as files", str(SOURCES))
    members = _members()
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, source in sorted(members.items()):
        digest.update(f"{name}\0{len(source)}\0{source}".encode())
    archive = directory / f"launcher-{digest.hexdigest()[:16]}{'-packed' if packed else ''}.pyz"
    if not archive.exists():
        _write(archive, members, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return archive


def _members() -> dict[str, str]:
    package = (SOURCES / "__init__.py").read_text(encoding="utf-8") + ELSEWHERE
    members = {"__main__.py": MAIN, "ganger/__init__.py": package}
    for package in PACKAGES:
        for path in (SOURCES / package).rglob("*.py"):
            members[f"ganger/{path.relative_to(SOURCES).as_posix()}"] = path.read_text(encoding="utf-8")
    return members


def _write(archive: Path, members: dict[str, str], how: int) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{archive.stem}.", dir=archive.parent) as scratch:
        whole = Path(scratch) / archive.name
        with zipfile.ZipFile(whole, "w") as file:
            for name, source in sorted(members.items()):
                file.writestr(zipfile.ZipInfo(name), source, how)
                if name != "__main__.py":
                    file.writestr(zipfile.ZipInfo(f"{name}c"), _compiled(name, source, Path(scratch)), how)
        whole.chmod(0o700)
        os.replace(whole, archive)


def _compiled(name: str, source: str, scratch: Path) -> bytes:
    """Bytecode beside the source spares this interpreter the compiling; another one passes it over."""
    path, compiled = scratch / "module.py", scratch / "module.pyc"
    path.write_text(source, encoding="utf-8")
    py_compile.compile(
        str(path),
        cfile=str(compiled),
        dfile=f"launcher.pyz/{name}",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return compiled.read_bytes()
