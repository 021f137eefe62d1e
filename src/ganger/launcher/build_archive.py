"""Build of the zipapp that starts inside every task: the launcher, `ganger.train`, and nothing else of ganger.

It is named by its content, so it is built once per version and interpreter and never changes under a running launcher.
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

# Makes the rest of ganger importable where it is installed. Does what pkgutil.extend_path does, which takes 8 ms to
# import.
EXTEND_PATH = """
import os
import sys

_entries = [os.path.join(entry, __name__) for entry in sys.path]
__path__ += [path for path in _entries if os.path.isfile(os.path.join(path, "__init__.py"))]
"""


def build(directory: Path, *, packed: bool = False) -> Path:
    """Build the zipapp in `directory` unless it exists, and return its path.

    With `packed` it is three times smaller, to be sent over a network, and starts some milliseconds slower. Raises
    OSError, also if this code itself runs from a zipapp.
    """
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
    package = (SOURCES / "__init__.py").read_text(encoding="utf-8") + EXTEND_PATH
    members = {"__main__.py": MAIN, "ganger/__init__.py": package}
    for package in PACKAGES:
        for path in (SOURCES / package).rglob("*.py"):
            members[f"ganger/{path.relative_to(SOURCES).as_posix()}"] = path.read_text(encoding="utf-8")
    return members


def _write(archive: Path, members: dict[str, str], compression: int) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{archive.stem}.", dir=archive.parent) as scratch:
        complete = Path(scratch) / archive.name
        with zipfile.ZipFile(complete, "w") as file:
            for name, source in sorted(members.items()):
                file.writestr(zipfile.ZipInfo(name), source, compression)
                if name != "__main__.py":
                    file.writestr(zipfile.ZipInfo(f"{name}c"), _compile(name, source, Path(scratch)), compression)
        complete.chmod(0o700)
        os.replace(complete, archive)


def _compile(name: str, source: str, scratch: Path) -> bytes:
    """Return bytecode to store beside the source: this interpreter then need not compile it; others ignore it."""
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
