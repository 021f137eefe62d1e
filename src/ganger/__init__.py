"""ganger runs distributed AI training: a gang starts as a whole or not at all, and restarts after failures.

    import ganger

    job = ganger.run("python train.py", nodes=2, gpu="H100:8")
    for line in job.logs(follow=True):
        print(line)

Importing this package is cheap on purpose: the command line and the launcher of the ranks start from it, under Python
3.8 or later. The names of the SDK are imported on first use; __init__.pyi declares them for type checkers.
"""

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "sdk.clients",
    "AsyncJob": "sdk.job_handles",
    "BadRequest": "client.client_errors",
    "Client": "sdk.clients",
    "ClientError": "client.client_errors",
    "Job": "sdk.job_handles",
    "JobFailed": "sdk.sdk_types",
    "JobFields": "sdk.job_fields",
    "JobFile": "sdk.sdk_types",
    "LogLine": "sdk.sdk_types",
    "NotFound": "client.client_errors",
    "Refused": "client.client_errors",
    "Report": "sdk.sdk_types",
    "Task": "sdk.tasks",
    "TimedOut": "client.client_errors",
    "Unreachable": "client.client_errors",
    "events": "sdk.shortcuts",
    "explain": "sdk.shortcuts",
    "logs": "sdk.shortcuts",
    "run": "sdk.shortcuts",
    "stop": "sdk.shortcuts",
    "submit": "sdk.shortcuts",
    "task": "sdk.tasks",
    "wait": "sdk.shortcuts",
}
"""The module below `ganger` that defines each name."""
__all__ = [*_HOMES]  # noqa: PLE0604 - which are strings


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in (f"{__name__}.client", f"{__name__}.sdk"):
            raise
        # In a task of a job there is always the part of ganger that a training script needs, and perhaps no more.
        raise ImportError(f"ganger.{name}: this Python has no ganger of its own: pip install ganger") from None
    return getattr(home, name)


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
