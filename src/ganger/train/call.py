"""Run a function as one rank of a job: `python -m ganger.train.call MODULE:FUNCTION DIRECTORY`.

The SDK's `@task` builds such commands; docs/reference/state-directory.md describes the files. DIRECTORY contains
`call.json` and `call.pickle`, and `main.py` if the caller was a script. The return value or the exception is written to
`results/GENERATION/rank-R` in the job's directory, beside `nodes`, readable by the owner only."""

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
"""Name under which the caller's `__main__` is imported, so that a script's `__main__` guard does not run."""


class Call:
    """One call as the caller serialized it."""

    def __init__(self, target: str, directory: str) -> None:
        """Read the description of the call; function and arguments are loaded when it runs."""
        self._target = target
        self._directory = directory
        with open(os.path.join(directory, "call.json"), encoding="utf-8") as file:
            self._description = json.load(file)
        sys.path.extend(entry for entry in self._description["path"] if entry not in sys.path)

    def __call__(self) -> object:
        """Return the function's return value."""
        with open(os.path.join(self._directory, "call.pickle"), "rb") as file:
            payload = _Unpickler(file, self.main).load()
        if self._description["by_value"]:
            function, arguments, keywords = payload
        else:
            function, (arguments, keywords) = self._function(), payload
        return getattr(function, "__ganger_task__", function)(*arguments, **keywords)

    def dumps(self, value: object) -> bytes:
        """Pickle a value, with classes defined in a notebook pickled by value."""
        if self._description["by_value"]:
            content: bytes = importlib.import_module("cloudpickle").dumps(value)
            return content
        return pickle.dumps(value)

    def main(self) -> types.ModuleType:
        """Return the caller's `__main__`: imported as a module, or executed again under another name."""
        if MAIN not in sys.modules:
            name = self._description["main"]
            sys.modules[MAIN] = importlib.import_module(name) if name else self._script()
        return sys.modules[MAIN]

    def _function(self) -> Callable[..., object]:
        module, _, name = self._target.partition(":")
        value: Any = self.main() if module == "__main__" else importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        function: Callable[..., object] = value
        return function

    def _script(self) -> types.ModuleType:
        with open(os.path.join(self._directory, "main.py"), "rb") as file:
            source = file.read()
        module = types.ModuleType(MAIN)
        module.__file__ = self._description["script"]
        sys.modules[MAIN] = module
        # The caller's own program, which it would run itself.
        exec(compile(source, self._description["script"], "exec"), module.__dict__)  # noqa: S102
        return module


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds names defined in the caller's `__main__`."""

    def __init__(self, file: Any, main: Callable[[], types.ModuleType]) -> None:
        super().__init__(file)
        self._main = main

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__":
            return super().find_class(module, name)
        value: Any = self._main()
        for part in name.split("."):
            value = getattr(value, part)
        return value


def main(arguments: list[str]) -> None:
    """Call the function, write its outcome, and exit as the function does."""
    target, directory = arguments
    sys.argv = [target]
    try:
        os.utime(directory)  # directories in use are not cleaned up
        call = Call(target, directory)
    except FileNotFoundError as error:
        sys.exit(f"the arguments of {target} were deleted ({error.filename}): call it again")
    try:
        value = call()
        content = call.dumps(value)
    except Exception as error:
        _write_outcome(
            _pickle_error(call, error),
            {"summary": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()},
        )
        raise
    _write_outcome(content, {})


def _pickle_error(call: Call, error: Exception) -> bytes:
    """Return the pickled exception, or b"" if it does not survive a round trip."""
    try:
        content = call.dumps(error)
        _Unpickler(io.BytesIO(content), call.main).load()
    except Exception:  # noqa: BLE001 - its own code may raise anything
        return b""
    return content


def _write_outcome(content: bytes, failure: dict[str, str]) -> None:
    """Write the outcome of this rank atomically: one line of JSON, then the pickle."""
    task = launcher_environment.task_directory()
    if task is None:
        return  # the command runs outside ganger
    job = task
    for _ in ("GENERATION", "NODE", "nodes"):
        job = os.path.dirname(job)
    directory = os.path.join(job, "results", str(launcher_environment.attempt()))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    header = {
        "rank": launcher_environment.rank(),
        "returned": not failure,
        "at_ms": time.time_ns() // 1_000_000,
        "summary": "",
        "traceback": "",
        **failure,
    }
    path = os.path.join(directory, f"rank-{launcher_environment.rank()}")
    with open(f"{path}.new", "wb", opener=_open_private) as file:
        file.write(json.dumps(header).encode() + b"\n" + content)
    os.replace(f"{path}.new", path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


if __name__ == "__main__":
    main(sys.argv[1:])
