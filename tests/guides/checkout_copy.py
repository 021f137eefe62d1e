"""A copy of the checkout that may be changed, with a process that runs its tests without starting Python each time."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("src", "plugins", "tests", "tools", "docs", "examples", "requirements")
TEST_SERVER: Final = """\
import os, shlex, sys
import click, fastapi, hypothesis, numpy, pydantic, pytest, rich, ruamel.yaml

for line in sys.stdin:
    output, *arguments = shlex.split(line)
    pid = os.fork()
    if pid == 0:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = pytest.main(["-q", "--assert=plain", *arguments])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs tests in a fork for each line that it reads: what is imported above, and not of ganger, is there already."""


class Edit(NamedTuple):
    """A replacement in a file, once; an empty `old` adds at the end, in a new file too."""

    path: str
    old: str
    new: str

    def inverse(self) -> "Edit":
        """Return the edit that undoes this one."""
        return Edit(self.path, self.new, self.old)


class CheckoutCopy:
    """The copy. Close it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in FOLDERS:
            shutil.copytree(ROOT / name, root / name, symlinks=True)
        with suppress(FileNotFoundError):  # what mypy knows of the unchanged files, if it has ever run
            shutil.copytree(ROOT / ".mypy_cache", root / ".mypy_cache")
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, root)
        self.environment = os.environ | {
            "PYTHONPATH": f"{root / 'src'}:{root}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._output = root / "output"
        self._server = subprocess.Popen(
            [sys.executable, "-c", TEST_SERVER],
            cwd=root,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process that runs tests."""
        self._server.communicate()

    def apply(self, edit: Edit) -> None:
        """Change a file; one that becomes empty is removed."""
        path = self.root / edit.path
        before = path.read_text() if path.exists() else ""
        assert edit.old in before, f"{edit.path} has no {edit.old!r}: tests/guides/additions.py needs another place"
        after = before.replace(edit.old, edit.new, 1) if edit.old else before + edit.new
        if after:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(after)
        else:
            path.unlink()

    @contextmanager
    def unchanged_afterwards(self, paths: Iterable[str]) -> Iterator[None]:
        """Restore these files at the end of the context."""
        texts = {path: (self.root / path).read_bytes() for path in paths}
        try:
            yield
        finally:
            for path, text in texts.items():
                (self.root / path).write_bytes(text)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module of Python in the copy."""
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)

    def test(self, *ids: str) -> tuple[int, str]:
        """Run tests; return the exit code of pytest, and what it printed."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(self._output, *ids, file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline()), self._output.read_text()
