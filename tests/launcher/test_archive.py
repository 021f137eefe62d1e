"""Content of the zipapp: all that a task needs, usable without and with an installed ganger."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ganger import __version__
from ganger.launcher import build_archive as archive_module
from ganger.launcher.build_archive import build

SOURCE = Path(archive_module.__file__).parents[1]
MODULES = sorted([*(SOURCE / "launcher").rglob("*.py"), *(SOURCE / "train").rglob("*.py")])


def _python(code: str, archive: Path, *options: str) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(archive)}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_build_is_named_by_its_content_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path)
    made = first.stat()
    assert build(tmp_path) == first
    assert first.stat() == made
    monkeypatch.setattr(archive_module, "EXTEND_PATH", "# another text")
    second = build(tmp_path)
    assert second != first
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert first.name.startswith("launcher-")
    assert first.stat().st_mode & 0o777 == 0o700


def test_build_is_the_same_everywhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert build(tmp_path / "a").name == build(tmp_path / "b").name


def test_archive_holds_launcher_and_train_and_no_more(archive: Path) -> None:
    names = {name for name in zipfile.ZipFile(archive).namelist() if name.endswith(".py")}
    expected = {f"ganger/{path.relative_to(SOURCE)}" for path in MODULES}
    assert names == {"__main__.py", "ganger/__init__.py"} | expected


def test_train_comes_from_the_archive_and_the_rest_from_where_it_is_installed(archive: Path) -> None:
    code = "import ganger.train, ganger.settings as s; print(ganger.train.__file__, s.__file__, ganger.__version__)"
    train, settings, version = _python(code, archive).split()
    assert train.startswith(str(archive))
    assert settings == str(SOURCE / "settings.py")
    assert version == __version__


def test_archive_needs_nothing_installed(archive: Path) -> None:
    modules = ", ".join(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in MODULES)
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import {modules.replace('.__init__', '')}; print('alone')"
    )
    assert _python(code, archive, "-I", "-S") == "alone"


def test_an_archive_is_not_made_from_an_archive(archive: Path) -> None:
    """It would be empty, and every job on it would fail."""
    code = "from pathlib import Path; from ganger.launcher.build_archive import build; build(Path('/nowhere'))"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _python(code, archive)
    assert "ganger is not installed as files" in caught.value.stderr


def test_import_of_train_loads_next_to_nothing(archive: Path) -> None:
    code = "import sys; before = set(sys.modules); from ganger.train import report, should_checkpoint; "
    code += "print(*(set(sys.modules) - before))"
    loaded = set(_python(code, archive).split())
    assert not loaded & {"asyncio", "dataclasses", "json", "pathlib", "re", "subprocess", "typing", "ctypes"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_source_is_python_3_8_and_imports_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [name for name in imported if name.split(".")[0] == "ganger"]
    # The launcher uses the checkpoint format of ganger.train; a script needs nothing of the launcher.
    allowed = {"launcher": ("ganger.launcher", "ganger.train"), "train": ("ganger.train",)}[
        path.relative_to(SOURCE).parts[0]
    ]
    assert [name for name in own if name != "ganger" and not name.startswith(allowed)] == []
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names | {"ganger"}
    assert "from __future__ import annotations" in path.read_text() or path.read_text().count("\n") < 8
