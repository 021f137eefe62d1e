"""Runs a function as one rank of a job: `python -m ganger.train.call MODULE:FUNCTION DIRECTORY`. The SDK's `@task`
makes such commands; docs/reference/state-directory.md has the files.

DIRECTORY has `call.json` and `call.pickle`, and `main.py` when the caller was a script. What the function returns, or
raises, goes to `results/GENERATION/rank-R` of the job's directory, beside `nodes`, readable by its owner alone.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import sys
import time
import traceback
import types

from ganger.train import launcher_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAIN = "__ganger_main__"
"""What the caller's `__main__` is called here: a script guards its own work by that name."""


class Call:
    """One call, as the caller wrote it."""

    def __init__(self, target: str, directory: str) -> None:
        """Read what it is; the function and the arguments wait until they are wanted."""
        self._target = target
        self._directory = directory
        with open(os.path.join(directory, "call.json"), encoding="utf-8") as file:
            self._said = json.load(file)
        sys.path.extend(entry for entry in self._said["path"] if entry not in sys.path)

    def __call__(self) -> object:
        """What the function returns."""
        with open(os.path.join(self._directory, "call.pickle"), "rb") as file:
            given = _Unpickler(file, self.main).load()
        if self._said["by_value"]:
            function, arguments, named = given
        else:
            function, (arguments, named) = self._function(), given
        return getattr(function, "__ganger_task__", function)(*arguments, **named)

    def dumps(self, value: object) -> bytes:
        """The value pickled; classes of a notebook by value."""
        if self._said["by_value"]:
            content: bytes = importlib.import_module("cloudpickle").dumps(value)
            return content
        return pickle.dumps(value)

    def main(self) -> types.ModuleType:
        """What was the caller's `__main__`: imported, or run once more under another name."""
        if MAIN not in sys.modules:
            name = self._said["main"]
            sys.modules[MAIN] = importlib.import_module(name) if name else self._script()
        return sys.modules[MAIN]

    def _function(self) -> Callable[..., object]:
        module, _, name = self._target.partition(":")
        found: Any = self.main() if module == "__main__" else importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        function: Callable[..., object] = found
        return function

    def _script(self) -> types.ModuleType:
        with open(os.path.join(self._directory, "main.py"), "rb") as file:
            source = file.read()
        module = types.ModuleType(MAIN)
        module.__file__ = self._said["script"]
        sys.modules[MAIN] = module
        # The caller's own program, which it would run itself.
        exec(compile(source, self._said["script"], "exec"), module.__dict__)  # noqa: S102
        return module


class _Unpickler(pickle.Unpickler):
    """Finds what was defined in the caller's `__main__`."""

    def __init__(self, file: Any, main: Callable[[], types.ModuleType]) -> None:
        super().__init__(file)
        self._main = main

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__":
            return super().find_class(module, name)
        found: Any = self._main()
        for part in name.split("."):
            found = getattr(found, part)
        return found


def main(arguments: list[str]) -> None:
    """Call the function, keep what comes of it, and end as it does."""
    target, directory = arguments
    sys.argv = [target]
    try:
        os.utime(directory)  # those that are in use are kept
        call = Call(target, directory)
    except FileNotFoundError as error:
        sys.exit(f"the arguments of {target} are gone, {error.filename}: call it again")
    try:
        value = call()
        content = call.dumps(value)
    except Exception as error:
        _keep(
            _pickled(call, error), {"summary": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        )
        raise
    _keep(content, {})


def _pickled(call: Call, error: Exception) -> bytes:
    """The exception, or nothing when it does not come whole out of a pickle."""
    try:
        content = call.dumps(error)
        _Unpickler(io.BytesIO(content), call.main).load()
    except Exception:  # noqa: BLE001 - its own code may raise anything
        return b""
    return content


def _keep(content: bytes, failure: dict[str, str]) -> None:
    """Write the outcome of this rank: a line of JSON, then the pickle. It is there whole or not at all."""
    task = launcher_environment.task_directory()
    if task is None:
        return  # somebody tries the command outside ganger
    job = task
    for _ in ("GENERATION", "NODE", "nodes"):
        job = os.path.dirname(job)
    directory = os.path.join(job, "results", str(launcher_environment.attempt()))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    head = {
        "rank": launcher_environment.rank(),
        "returned": not failure,
        "at_ms": time.time_ns() // 1_000_000,
        "summary": "",
        "traceback": "",
        **failure,
    }
    path = os.path.join(directory, f"rank-{launcher_environment.rank()}")
    with open(f"{path}.new", "wb", opener=_private) as file:
        file.write(json.dumps(head).encode() + b"\n" + content)
    os.replace(f"{path}.new", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


if __name__ == "__main__":
    main(sys.argv[1:])
