"""The command of a task's call: the same for every rank, with the function and its arguments in files.

A function of a module is imported by its name; one of a script by running the script under another name; one without a
file, defined in a notebook or inside another function, is pickled by value, which needs cloudpickle. See
docs/explanation/decisions/sdk.md.
"""

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
"""Time for which the arguments of a call are stored after they were last used."""
_RUNNER: Final = "ganger.train.call"


class TaskFunction(Protocol[P, R]):
    """A function that can run as a job, as `@task` returns it.

    `__ganger_task__` is the function as defined, `fields` the fields of its job.
    """

    __ganger_task__: Callable[P, R]
    fields: JobFields


@dataclass(frozen=True, slots=True)
class _Main:
    """The way in which `__main__` is imported again: by a module's name, by a script's path, or not at all."""

    module: str | None
    script: str | None


def command_of(home: Home, function: TaskFunction[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the command of every rank of a call, and store its arguments in the state directory.

    Raise BadRequest if the arguments cannot be pickled, or the function cannot be imported.
    """
    plain, main = function.__ganger_task__, _main()
    reference = _reference(function)
    by_value = reference is None or (
        main == _Main(None, None) and (reference.startswith("__main__:") or _needs_main((args, kwargs)))
    )
    call = (plain, args, dict(kwargs)) if by_value else (args, dict(kwargs))
    files = {"call.pickle": _dumps(call, plain, by_value=by_value)}
    if main.script and (b"__main__" in files["call.pickle"] or str(reference).startswith("__main__:")):
        files["main.py"] = Path(main.script).read_bytes()
    metadata = {
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "main": main.module,
        "script": main.script,
        "by_value": by_value,
    }
    files["call.json"] = json.dumps(metadata).encode()
    target = reference or f"{plain.__module__}:{plain.__qualname__}"
    return [sys.executable, "-m", _RUNNER, target, str(_kept(home, files))]


def _main() -> _Main:
    module = sys.modules["__main__"]
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return _Main(spec.name, None)
    script = getattr(module, "__file__", None)
    return _Main(None, str(Path(script).absolute()) if script and Path(script).is_file() else None)


def _needs_main(arguments: Any) -> bool:
    """Return whether the arguments contain anything that is defined in `__main__`."""
    try:
        return b"__main__" in pickle.dumps(arguments)
    except Exception:  # noqa: BLE001 - such as what a function of __main__ raises: that it has no name
        return True


def _reference(function: TaskFunction[P, R]) -> str | None:
    """Return MODULE:NAME of the function, None if it cannot be imported, as one inside another function."""
    plain = function.__ganger_task__
    value: ModuleType | Any = sys.modules.get(plain.__module__)
    for part in plain.__qualname__.split("."):
        value = getattr(value, part, None)
    if getattr(value, "__ganger_task__", value) is not plain:
        return None
    return f"{plain.__module__}:{plain.__qualname__}"


def _dumps(call: Any, function: Callable[..., Any], *, by_value: bool) -> bytes:
    name = function.__qualname__
    if by_value:
        if importlib.util.find_spec("cloudpickle") is None:
            why = f"{name} is in no file that a job could import: it would travel by value, which takes cloudpickle"
            raise BadRequest("needs_cloudpickle", why, "pip install cloudpickle, or put it into a module", USAGE)
        dumps = importlib.import_module("cloudpickle").dumps
    else:
        dumps = pickle.dumps
    try:
        content: bytes = dumps(call)
    except Exception as error:  # an argument's own code may raise anything
        why = f"the arguments of {name} cannot be pickled: {type(error).__name__}: {error}"
        raise BadRequest(
            "cannot_pickle", why, "pass plain values, or what the function can make itself", USAGE
        ) from error
    return content


def _kept(home: Home, files: Mapping[str, bytes]) -> Path:
    """Return the directory with these files, named by their content; raise Refused if they cannot be written."""
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
        raise Refused("cannot_write", why, f"df -h {home.path}", REFUSED) from None
    return directory


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Create the directory, 0700, with its files, 0600: all or nothing."""
    scratch = directory.with_name(f".{directory.name}.{os.getpid()}.{time.monotonic_ns()}")
    scratch.mkdir(mode=0o700)
    try:
        for name, content in files.items():
            (scratch / name).touch(mode=0o600)
            (scratch / name).write_bytes(content)
        scratch.rename(directory)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not directory.exists():  # else another process was faster with the same call
            raise


def _forget_old(calls: Path) -> None:
    oldest_s = time.time() - KEPT_S
    for directory in calls.iterdir():
        with suppress(FileNotFoundError):  # another process may do the same
            if directory.stat().st_mtime < oldest_s:
                shutil.rmtree(directory, ignore_errors=True)
