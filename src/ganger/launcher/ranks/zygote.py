"""The zygote: a process of the job's interpreter that imports the modules of the job's script once, and forks ranks.

The launcher runs the text of this file with `python -c` (`warm_ranks`), so it imports nothing of ganger. Descriptor 0
is the socket to the launcher, the argument the rest of the job's command. Only installed modules are imported: the
job's own code is run by each rank. A rank is a grandchild, which becomes a child of the launcher.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path[:1] == [""]:
    del sys.path[0]  # the job's directory, whose modules must not come before these

import array
import ast
import builtins
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import site
import socket
import sysconfig
import time
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Tuple

    _Memory = Tuple[int, int]
    """(address, size) of the part of the memory that the kernel shows as command line or environment."""

NAME = b"ganger-zygote"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ROOM = "GANGER_ZYGOTE_ROOM"
"""Variables that only make room for the variables of ranks, so that these show in /proc/PID/environ."""
OWN_VARIABLES = (ROOM, "GANGER_TASK_DIR")
ARGUMENTS, ENVIRONMENT = 45, 47  # indices of the beginning in /proc/PID/stat after the name: proc_pid_stat(5)
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd")
FIRST_RANK_S = 0.5
CANNOT_OPEN = 2  # Python's exit code


def main() -> Callable[[], object]:
    """Serve the launcher; return, in each rank, the function that runs the job's program."""
    program = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    arguments, environment = _memory(ARGUMENTS), _memory(ENVIRONMENT)
    _write(arguments, NAME)
    given = {name: value for name, value in _given_environment().items() if not name.startswith(OWN_VARIABLES)}
    _set_environment({name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)})
    sys.path[:0] = _first_path(program)
    obstacle = _import_modules(program)
    # What Python and the modules have set; a rank has its own value where the zygote had none.
    changes = {name: value for name, value in os.environ.items() if given.get(name) != value}
    control.sendall(json.dumps({"obstacle": obstacle}).encode() + b"\n")
    if obstacle:
        os._exit(0)
    gc.collect()
    gc.freeze()  # the memory stays shared: a collection would write to every object
    while True:
        request, (permit, *streams) = _receive(control)
        if _fork(control):
            for stream in (permit, *streams):
                os.close(stream)
            continue
        try:
            _become_rank(request, streams, arguments, environment)
            own = request["environment"]
            _set_environment({**own, **{name: changes[name] for name in changes if name in given or name not in own}})
        except OSError as error:
            control.sendall(json.dumps({"error": f"{error}"}).encode() + b"\n")
            os._exit(1)
        control.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        control.close()
        if not os.read(permit, 1):  # the launcher has given up, and started the rank without this process
            os._exit(1)
        os.close(permit)
        if "torch.distributed" in sys.modules:
            _await_first_rank(own)
        return _runner(request["argv"], request["words"])


# -- modules ---------------------------------------------------------------------------------------------------------


def _import_modules(program: list[str]) -> str:
    """Import the installed modules that the program imports; return why ranks cannot be forked after that, or ""."""
    before = frozenset(sys.modules)
    try:
        imports = list(find_imports(program))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return f"the imports of {' '.join(program[:2])} cannot be read: {type(error).__name__}: {error}"
    for module, names, is_optional in imports:
        try:
            __import__(module, fromlist=names)
        except BaseException as error:  # noqa: BLE001 - a module may even exit
            if not is_optional:
                return f"importing {module} failed: {type(error).__name__}: {error}"
        if _has_gpu():
            return f"importing {module} initialised CUDA, which does not survive a fork"
    own_code = sorted(name for name in {*sys.modules} - before if _is_own_code(sys.modules[name]))
    if own_code:
        return f"an installed module imports {own_code[0]}, which is code of the job"
    shadowed = sorted(name for name in sys.modules if "." not in name and _is_shadowed(name))
    if shadowed:
        return f"the job has a module {shadowed[0]} of its own, and so has Python"
    return _processes_left()


def find_imports(program: list[str]) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield (module, names from it, whether it may fail) of the installed modules that the program's code imports.

    These are the imports of the script's first level, and of the modules of the job that it imports there.
    """
    paths = [*_local_files(sys.path[0], program[1].split("."))] if program[0] == "-m" else [program[0]]
    seen = set(paths)
    while paths:
        path = paths.pop(0)
        with open(path, "rb") as file:
            body = ast.parse(file.read(), path).body
        for node, is_optional in _first_level(body, is_optional=False):
            for module, names in _imported(node):
                base = _local_base(node, module, path)
                if base is None:
                    if module.partition(".")[0] != "ganger":
                        yield module, names, is_optional
                    continue
                if not _is_inside(base):
                    continue
                parts = module.split(".") if module else []
                files = {file for name in names or ("",) for file in _local_files(base, [*parts, name])}
                paths += sorted(files - seen)
                seen |= files


def _first_level(body: list[ast.stmt], *, is_optional: bool) -> Iterator[tuple[ast.stmt, bool]]:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, is_optional
        elif isinstance(node, ast.Try):
            yield from _first_level(node.body, is_optional=True)


def _imported(node: ast.stmt) -> list[tuple[str, tuple[str, ...]]]:
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "", tuple(alias.name for alias in node.names))]
    return [(alias.name, ()) for alias in node.names] if isinstance(node, ast.Import) else []


def _local_base(node: ast.stmt, module: str, path: str) -> str | None:
    """Return the directory that a module of the job is to be sought in; None for an installed module."""
    level = node.level if isinstance(node, ast.ImportFrom) else 0
    if level:
        return os.path.join(os.path.dirname(path), *[".."] * (level - 1))
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None  # the import itself says what is wrong
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ())] or [spec.origin or "built-in"]
    return None if not os.path.isabs(places[0]) or _is_installed(places[0]) else os.path.dirname(places[0])


def _local_files(base: str, parts: list[str]) -> Iterator[str]:
    """Yield the files of a module and of the packages around it, as far as they exist."""
    for end in range(1, len(parts) + 1):
        path = os.path.join(base, *parts[:end])
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                yield os.path.realpath(file)


@functools.lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    """Return the directories of installed modules."""
    paths = sysconfig.get_paths()
    places = [*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()]
    return tuple(os.path.join(os.path.realpath(place), "") for place in (*places, site.getusersitepackages()))


def _is_installed(path: str) -> bool:
    return os.path.realpath(path).startswith(_roots())


def _is_inside(directory: str) -> bool:
    """Return True if a directory is one of the job: code elsewhere is neither imported nor read."""
    places = (os.path.join(os.path.realpath(place), "") for place in (os.getcwd(), sys.path[0]))
    return os.path.join(os.path.realpath(directory), "").startswith(tuple(places))


def _is_own_code(module: object) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and os.path.isabs(path) and not _is_installed(path)


def _is_shadowed(name: str) -> bool:
    """Return True if the job's first directory has a module of the name of a loaded one, which ranks would get."""
    path = os.path.join(sys.path[0], name) if sys.path else name
    is_there = os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__init__.py"))
    return is_there and _is_installed(getattr(sys.modules[name], "__file__", None) or "")


def _has_gpu() -> bool:
    """Return True if CUDA is initialised: by torch's word, or because a device is open."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return True
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(GPU_DEVICES):
                return True
        except OSError:
            continue
    return False


def _processes_left() -> str:
    """Return what runs beside this thread and would be missing, or locked for ever, in a forked process."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        return "an imported module has started a process"
    # A library that can be forked ends its threads before; numpy's OpenBLAS does.
    if trial := os.fork():
        os.waitpid(trial, 0)
    else:
        os._exit(0)
    count = len(os.listdir("/proc/self/task")) - 1
    return f"the imported modules have started threads, of which {count} cannot be forked" if count else ""


# -- forking ---------------------------------------------------------------------------------------------------------


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next request and its descriptors; end with the launcher."""
    size_bytes, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(3 * 4), socket.MSG_WAITALL)
    if len(size_bytes) < 4:
        os._exit(0)
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    data = control.recv(int.from_bytes(size_bytes, "little"), socket.MSG_WAITALL)
    return json.loads(data), list(streams)


def _fork(control: socket.socket) -> bool:
    """Fork twice; return False in the grandchild, whose parent has ended."""
    try:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return True
        between = os.getpid()
        if os.fork():
            os._exit(0)
    except OSError as error:
        control.sendall(json.dumps({"error": f"cannot fork: {error.strerror}"}).encode() + b"\n")
        return True
    while os.getppid() == between:
        time.sleep(0.0002)
    return False


def _become_rank(request: dict[str, Any], streams: list[int], arguments: _Memory, environment: _Memory) -> None:
    """Take on what an executed rank would have; raise OSError."""
    os.setsid()
    for number, stream in zip((1, 2), streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["directory"])
    _write(arguments, b"\0".join(map(os.fsencode, request["argv"])))
    pairs = (f"{name}={value}" for name, value in request["environment"].items())
    _write(environment, b"\0".join(map(os.fsencode, pairs)))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["launcher"]:  # it died before the line above, so no signal came
        os.kill(os.getpid(), signal.SIGKILL)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # Python's own generator does so itself
    importlib.invalidate_caches()


def _await_first_rank(environment: dict[str, str]) -> None:
    """Wait, but not for long, until rank 0 listens where the ranks meet.

    Forked ranks are as far as that at nearly the same time, and torch tries a refused connection again only after some
    500 ms. No rank gets further without rank 0.
    """
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address or not port.isdecimal() or environment.get("RANK", "0") == "0":
        return
    give_up_at = time.monotonic() + FIRST_RANK_S
    while time.monotonic() < give_up_at:
        try:
            socket.create_connection((address, int(port)), FIRST_RANK_S).close()
        except (OSError, OverflowError):
            time.sleep(0.005)
        else:
            return


def _given_environment() -> dict[str, str]:
    """Return the variables that this process was started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs}


def _set_environment(variables: dict[str, str]) -> None:
    """Replace the variables; afterwards none lies in the memory that the process was started with."""
    os.environ.clear()
    os.environ.update(variables)


def _memory(index: int) -> _Memory:
    with open("/proc/self/stat", "rb") as file:
        start, end = (int(field) for field in file.read().rpartition(b")")[2].split()[index : index + 2])
    return start, end - start


def _write(memory: _Memory, text: bytes) -> None:
    start, size = memory
    ctypes.memset(start, 0, size)
    ctypes.memmove(start, text, min(len(text), size - 1))


# -- running ---------------------------------------------------------------------------------------------------------


def _runner(argv: list[str], words: int) -> Callable[[], object]:
    """Return the function that runs the program as Python does; its frames are left out of tracebacks."""
    program, this = argv[words:], sys.modules["__main__"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = argv
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __file__=None, __cached__=None)

    def run() -> None:
        try:
            _execute(program, module)
        except BaseException as error:
            _leave_out_frames(error, this)
            raise

    return run


def _execute(program: list[str], module: types.ModuleType) -> None:
    if program[0] == "-m":
        sys.argv = ["-m", *program[2:]]
        runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]  # noqa: SLF001 - it is what `python -m` calls
        return
    sys.argv = program
    path = os.path.abspath(program[0]) if sys.version_info >= (3, 9) else program[0]
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(CANNOT_OPEN)
    vars(module).update(__file__=path, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # noqa: S102


def _leave_out_frames(error: BaseException, this: types.ModuleType) -> None:
    """Have the traceback begin with the job's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals is vars(this):
        frames = frames.tb_next
    hook = sys.excepthook
    sys.excepthook = lambda kind, value, _: hook(kind, value.with_traceback(frames), frames)


def _first_path(program: list[str]) -> list[str]:
    """Return what Python puts before the other directories of modules."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return []
    return [os.getcwd() if program[0] == "-m" else os.path.dirname(os.path.realpath(program[0]))]


if __name__ == "__main__":
    main()()
