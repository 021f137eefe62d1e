"""The command of a task's call: what every rank runs, with the function and its arguments kept in files.

A function of a module is found again by its name; one of a script by running the script under another name; one that
has no file, of a notebook or inside another function, travels by value and needs cloudpickle.
docs/explanation/decisions/sdk.md."""

import hashlib
import importlib.util
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from ganger.client.client_errors import REFUSED, USAGE, BadRequest, Refused
from ganger.sdk.job_fields import JobFields
from ganger.settings import Home, HomeError, make_private

P = ParamSpec("P")
R = TypeVar("R")

KEPT_S: Final = 30 * 24 * 3600.0
"""For so long after it was used last the arguments of a call are kept."""
_RUNNER: Final = "ganger.train.call"


class TaskFunction(Protocol[P, R]):
    """A function that can be a job, as `@task` returns it.

    `__ganger_task__` is the function as it was defined, `fields` what a job of it needs.
    """

    __ganger_task__: Callable[P, R]
    fields: JobFields


@dataclass(frozen=True, slots=True)
class _Main:
    """How `__main__` is to be found again: a module's name, or a script's path, or neither."""

    module: str | None
    script: str | None


def command_of(home: Home, function: TaskFunction[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """The command of every rank of a call, whose arguments are kept in the state directory. BadRequest when they cannot
    be pickled, or the function cannot be found again."""
    plain, main = function.__ganger_task__, _main()
    reference = _reference(function)
    by_value = reference is None or (
        main == _Main(None, None) and (reference.startswith("__main__:") or _needs_main((args, kwargs)))
    )
    given = (plain, args, dict(kwargs)) if by_value else (args, dict(kwargs))
    files = {"call.pickle": _dumps(given, plain, by_value=by_value)}
    if main.script and (b"__main__" in files["call.pickle"] or str(reference).startswith("__main__:")):
        files["main.py"] = Path(main.script).read_bytes()
    said = {
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "main": main.module,
        "script": main.script,
        "by_value": by_value,
    }
    files["call.json"] = json.dumps(said).encode()
    target = reference or f"{plain.__module__}:{plain.__qualname__}"
    return [sys.executable, "-m", _RUNNER, target, str(_kept(home, files))]


def _main() -> _Main:
    module = sys.modules["__main__"]
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return _Main(spec.name, None)
    script = getattr(module, "__file__", None)
    return _Main(None, str(Path(script).absolute()) if script and Path(script).is_file() else None)


def _needs_main(given: Any) -> bool:
    """Whether arguments are, or have in them, what was defined in `__main__`."""
    try:
        return b"__main__" in pickle.dumps(given)
    except Exception:  # noqa: BLE001 - such as what a function of __main__ raises: that it has no name
        return True


def _reference(function: TaskFunction[P, R]) -> str | None:
    """MODULE:NAME under which the function is found; None when it is not, as inside another function."""
    plain = function.__ganger_task__
    found: ModuleType | Any = sys.modules.get(plain.__module__)
    for part in plain.__qualname__.split("."):
        found = getattr(found, part, None)
    if getattr(found, "__ganger_task__", found) is not plain:
        return None
    return f"{plain.__module__}:{plain.__qualname__}"


def _dumps(given: Any, function: Callable[..., Any], *, by_value: bool) -> bytes:
    name = function.__qualname__
    if by_value:
        if importlib.util.find_spec("cloudpickle") is None:
            why = f"{name} is in no file that a job could import: it would travel by value, which takes cloudpickle"
            raise BadRequest("needs_cloudpickle", why, "pip install cloudpickle, or put it into a module", USAGE)
        dumps = importlib.import_module("cloudpickle").dumps
    else:
        dumps = pickle.dumps
    try:
        content: bytes = dumps(given)
    except Exception as error:  # an argument's own code may raise anything
        why = f"the arguments of {name} cannot be pickled: {type(error).__name__}: {error}"
        raise BadRequest(
            "cannot_pickle", why, "pass plain values, or what the function can make itself", USAGE
        ) from error
    return content


def _kept(home: Home, files: Mapping[str, bytes]) -> Path:
    """The directory that has these files, named by their content. Refused when they cannot be written."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    directory = home.path / "calls" / digest.hexdigest()[:32]
    try:
        make_private(home.path)
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        _forget_old(directory.parent)
        if not directory.exists():
            _write(directory, files)
        os.utime(directory)
    except HomeError as error:
        raise Refused("bad_home", str(error), error.next, REFUSED) from None
    except OSError as error:
        why = f"cannot keep the arguments in {directory.parent}: {error.strerror}"
        raise Refused("cannot_keep", why, f"df -h {home.path}", REFUSED) from None
    return directory


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make the directory, 0700, with its files, 0600: whole or not at all."""
    scratch = directory.with_name(f".{directory.name}.{os.getpid()}.{time.monotonic_ns()}")
    scratch.mkdir(mode=0o700)
    try:
        for name, content in files.items():
            (scratch / name).touch(mode=0o600)
            (scratch / name).write_bytes(content)
        scratch.rename(directory)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not directory.exists():  # else somebody was faster with the same call
            raise


def _forget_old(calls: Path) -> None:
    oldest_s = time.time() - KEPT_S
    for directory in calls.iterdir():
        with suppress(FileNotFoundError):  # somebody else may do the same
            if directory.stat().st_mtime < oldest_s:
                shutil.rmtree(directory, ignore_errors=True)
