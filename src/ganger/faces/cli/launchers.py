"""Programs that start ranks themselves. ganger does that, so they are named for what they are before anything is sent.

Called by `request` with the words of a command. They are to be supported as frameworks later; until then the answer
is the same job without them.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from ganger.faces.cli.problem import Problem

_TORCH_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_NOT_YET: Final = ("mpirun", "mpiexec", "deepspeed", "horovodrun")
_TORCHRUN_FLAGS: Final = ("--standalone", "--no-python", "--run-path", "-m", "--module")
"""torchrun's options that take no value (torch 2.13, torch.distributed.run); every other one takes the next word."""


def refuse_launchers(words: Sequence[str]) -> None:
    """Problem when `words` start a launcher; it says what to type instead."""
    program = PurePath(words[0]).name if words else ""
    if program == "torchrun":
        raise _torchrun(words[1:])
    if re.fullmatch(r"python[\d.]*", program) and len(words) > 2 and words[1] == "-m" and words[2] in _TORCH_MODULES:
        raise _torchrun(words[3:])
    if program in _NOT_YET:
        raise Problem(
            f"{program} is not yet supported\n"
            f"ganger starts the ranks itself; in each of them {program} would start them again",
            next="for a torch script: ganger run --framework torch -j NxM -- python train.py",
        )


def _torchrun(words: Sequence[str]) -> Problem:
    """The same job without torchrun, as far as its options tell."""
    options, rest = _options(words)
    nodes = options.get("nnodes", "1").rpartition(":")[2]
    processes = options.get("nproc-per-node", "1")
    script = [] if "no-python" in options else ["python", *(["-m"] if "m" in options or "module" in options else [])]
    command = shlex.join([*script, *(rest or ["train.py"])])
    grid = f"{nodes if nodes.isdigit() else 'N'}x{processes if processes.isdigit() else 'M'}"
    return Problem(
        "torchrun is not yet supported\n"
        "ganger starts the ranks itself and gives each the variables that torchrun would: leave torchrun out",
        next=f"ganger run --framework torch -j {grid} -- {command}",
    )


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The launcher's own options, with dashes for underscores, and the words from the script on."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        if not equals and word.replace("_", "-") not in _TORCHRUN_FLAGS and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest
