"""ganger runs distributed AI training: a whole gang starts or nothing, and comes back when something breaks.

    import ganger

    job = ganger.run("python train.py", nodes=2, gpu="H100:8")
    for line in job.logs(follow=True):
        print(line)

Importing this package costs nothing on purpose: the command line and the rank runtime start from it, under Python 3.8
or later. The names of the SDK come from `ganger.faces.sdk` when they are used;
__init__.pyi tells type checkers of them.
"""

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BadRequest",
    "Client",
    "ClientError",
    "Job",
    "JobFailed",
    "JobFields",
    "JobFile",
    "LogLine",
    "NotFound",
    "Refused",
    "Report",
    "Task",
    "TimedOut",
    "Unreachable",
    "events",
    "explain",
    "logs",
    "run",
    "stop",
    "submit",
    "task",
    "wait",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        sdk = import_module(f"{__name__}.faces.sdk")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.faces":
            raise
        # In a task of a job there is always the part of ganger that a training script needs, and perhaps no more.
        raise ImportError(f"ganger.{name}: this Python has no ganger of its own: pip install ganger") from None
    return getattr(sdk, name)


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
