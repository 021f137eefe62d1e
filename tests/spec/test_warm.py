"""Warm ranks are for one plain call of Python that the launcher makes itself; all else is refused with the reason."""

import pytest

from ganger.errors import RequestError
from ganger.framework_api.python_command import python_of, split_python_command
from ganger.spec import spec_from_dict, spec_to_dict

PLAIN = {"run": "python train.py", "warm": True}
OTHERS = ("t.py", "a b", "c*", "de")
SHELL = ("cd src && python t.py", "python t.py $LR", "python t.py >o")
SCRIPTLESS = ("python", "python -c 'import t'", "python -i t.py", "python -m")
FOREIGN = ("./train --fast", "A=1 python t.py", "srun python t.py")


@pytest.mark.parametrize(
    ("run", "words", "count"),
    [
        ("python train.py --lr 3e-4", ("python", "train.py", "--lr", "3e-4"), 1),
        (
            "/env/bin/python3.12 -uB -X dev t.py 'a b' \"c*\" d''e",
            ("/env/bin/python3.12", "-uB", "-X", "dev", "t.py", "a b", "c*", "de"),
            4,
        ),
        ("python -Werror -m pkg.train x", ("python", "-Werror", "-m", "pkg.train", "x"), 2),
        (("python", "train.py", "$HOME; rm"), ("python", "train.py", "$HOME; rm"), 1),
    ],
)
def test_a_plain_call_of_python(run: str | tuple[str, ...], words: tuple[str, ...], count: int) -> None:
    assert split_python_command(run) == (words, count)
    spec = spec_from_dict({"run": run if isinstance(run, str) else [*run], "framework": "torch", "warm": True}, "again")
    assert spec.warm
    assert spec_from_dict(spec_to_dict(spec), "again") == spec


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("/env/bin/python3 -X dev t.py x", ("/env/bin/python3", "-X", "dev")),
        (("/env/bin/python3.12", "-c", "import t"), ("/env/bin/python3.12",)),
        ("/env/bin/torchrun --nproc-per-node 8 t.py | tee log", ("/env/bin/python3",)),
        ("cd src && python t.py", ("python3",)),
        ((), ("python3",)),
    ],
)
def test_the_python_of_a_command(run: str | tuple[str, ...], words: tuple[str, ...]) -> None:
    assert python_of(run) == words


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(
            ({"run": run}, "run: its line needs a shell")
            for run in ("cd src && python t.py", "python t.py $LR", "python t.py >o")
        ),
        *(
            ({"run": run}, "runs no script")
            for run in ("python", "python -c 'import t'", "python -i t.py", "python -m")
        ),
        *(
            ({"run": run}, "is not a Python interpreter")
            for run in ("./train --fast", "A=1 python t.py", "srun python t.py")
        ),
        ({"run": ["./train"]}, "'./train' is not a Python interpreter"),
        ({"run": "torchrun train.py"}, "framework torchrun starts the ranks itself"),
        ({"run": "mpirun python train.py"}, "framework mpi starts the ranks itself"),
        ({"framework": "ray"}, "framework ray starts the ranks itself"),
        ({"framework": "deepspeed"}, "framework deepspeed starts the ranks itself"),
        ({"image": "python:3.13"}, "every attempt in a container image begins in a new container"),
        ({"roles": {"ps": {"run": "./serve"}}}, "roles.ps has a command of its own"),
    ],
)
def test_what_cannot_be_forked_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(
        RequestError, match="warm: only ranks of one command python SCRIPT can be forked, and "
    ) as error:
        spec_from_dict(PLAIN | fields, "job.yaml")
    assert reason in error.value.detail
    assert error.value.detail.endswith(": leave it out")
