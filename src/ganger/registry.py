"""Registry of plug-ins: queue orders, placement scores, frameworks, checks and backends, one module each.

A module in `policies/`, `core/nodes/scores/`, `frameworks/` or `checks/` is found by itself; a package elsewhere names
its module under the entry point `ganger.policies`, `ganger.scores`, `ganger.frameworks`, `ganger.checks`,
`ganger.backends` or `ganger.gpu_resources`, as those in plugins/ do.
Nothing is imported before it is needed. A plug-in that does not load is left out, logged and listed by `broken()`: it
never hides the others.
"""

import logging
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final, NoReturn

from ganger.errors import RequestError
from ganger.model.gpu_resources import GPU_RESOURCES, GpuResource

POLICIES: Final = "ganger.policies"
SCORES: Final = "ganger.scores"
FRAMEWORKS: Final = "ganger.frameworks"
CHECKS: Final = "ganger.checks"
BACKENDS: Final = "ganger.backends"
GPUS: Final = "ganger.gpu_resources"
VARIABLE_PATTERN: Final = r"([A-Z_][A-Z0-9_]*)?"
RESOURCE_PATTERN: Final = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
NAME_PATTERN: Final = r"[a-z0-9][a-z0-9_-]{0,62}"
"""The form of a plug-in's NAME."""

_OWN_PACKAGES: Final = {
    POLICIES: POLICIES,
    SCORES: "ganger.core.nodes.scores",
    FRAMEWORKS: FRAMEWORKS,
    CHECKS: CHECKS,
}
"""The packages that hold ganger's own plug-ins of each group."""

_REQUIRED: Final = {
    POLICIES: (
        *("NAME", "LIVENESS_GUARANTEES", "ORDERS_RUNNING", "STARVATION_AGE_MS", "FIXED_RESERVATIONS", "STRICT_ORDER"),
        *("account_key", "gang_key", "key_lower_bound", "fifo_class", "key", "factors", "next_key_change_ms"),
    ),
    SCORES: ("NAME", "LASTS", "SEEDED", "of_nodes", "of_devices"),
    FRAMEWORKS: ("NAME", "DOC", "RESERVED", "rank_environment"),
    CHECKS: ("NAME", "DOC", "INITIAL_STATE", "check"),
    BACKENDS: ("NAME", "create"),
    GPUS: ("NAME", "RESOURCES"),
}
PER: Final = ("rank", "node", "gang")
"""The processes that ganger starts: every rank; the first rank of each node, which starts the others there; rank 0."""


def _same_command(_placed: Any, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    return argv


def _no_files(_placed: Any) -> dict[str, str]:
    return {}


def _no_ranks(_placed: Any) -> tuple[int, ...]:
    return ()


def _not_recognised(_argv: tuple[str, ...]) -> dict[str, int] | None:
    return None


def _no_error(_value: Any) -> None:
    return None


_DEFAULTS: Final[dict[str, Any]] = {
    "PER": "rank",
    "NEEDS": None,
    "PROGRAMS": (),
    "AGENT": False,
    "ROLES": None,
    "lacks": _no_error,
    "fixed_size": _no_error,
    "rank_command": _same_command,
    "files": _no_files,
    "ends": _no_ranks,
    "recognise": _not_recognised,
}
"""The attributes that a framework may leave out, with their defaults (docs/how-to/frameworks/plug-in.md)."""
_log = logging.getLogger(__name__)


def policies() -> dict[str, ModuleType]:
    """Return the queue orders by NAME."""
    return _load_group(POLICIES)[0]


def scores() -> dict[str, ModuleType]:
    """Return the placement scores by NAME."""
    return _load_group(SCORES)[0]


def order(name: str) -> ModuleType:
    """Return the queue order that a policy document names.

    Raise RequestError (no_such_order) when it is no longer installed.
    """
    return policies().get(name) or _raise_missing("no_such_order", f"the queue order {name}", POLICIES)


def score(name: str) -> ModuleType:
    """Return the placement score that a policy document names.

    Raise RequestError (no_such_score) when it is no longer installed.
    """
    return scores().get(name) or _raise_missing("no_such_score", f"the placement score {name}", SCORES)


def frameworks() -> dict[str, ModuleType]:
    """Return the frameworks by NAME."""
    return _load_group(FRAMEWORKS)[0]


def checks() -> dict[str, Any]:
    """Return the checks of nodes by NAME, each a module with the interface of `check_interface.Check`."""
    return dict(_load_group(CHECKS)[0])


@cache
def gpu_resources() -> dict[str, GpuResource]:
    """Return the extended resources that are whole GPUs by name: of known vendors, then those of plug-ins."""
    of_site = (row for module in _load_group(GPUS)[0].values() for row in module.RESOURCES)
    return GPU_RESOURCES | {row.name: row for row in of_site}


def no_gpus() -> list[dict[str, str]]:
    """Return the variables of a container that is to see no GPUs.

    Images made from those of NVIDIA set NVIDIA_VISIBLE_DEVICES=all, with which its container runtime shows them every
    GPU of the node, also those that others hold.
    """
    hidden = {row.visibility: row.hidden for row in gpu_resources().values() if row.hidden}
    return [{"name": name, "value": value} for name, value in hidden.items()]


def backend(name: str) -> ModuleType:
    """Return the backend that the settings file names. Raise RequestError (no_such_backend) if it is not installed."""
    loaded, failed = _load_group(BACKENDS)
    if (module := loaded.get(name)) is not None:
        return module
    failures = "".join(f"; {message}" for message in failed.values())
    installed = ", ".join(sorted(loaded)) or "none"
    raise RequestError(
        "no_such_backend",
        f"settings.toml has the backend {name}, which is not installed{failures}; installed: {installed}",
        "install the package that it comes with, or remove `backend` from settings.toml",
    )


def plugin_attribute(framework: ModuleType, name: str) -> Any:
    """Return an optional attribute of a framework, or its default."""
    return getattr(framework, name, _DEFAULTS[name])


def broken() -> dict[str, str]:
    """Return the plug-ins that did not load: the error message by the name under which each was found."""
    return {name: error for group in _REQUIRED for name, error in _load_group(group)[1].items()}


def _raise_missing(code: str, title: str, group: str) -> NoReturn:
    loaded, failed = _load_group(group)
    # A plug-in that does not load has no name: any of these may be it.
    failures = "".join(f"; {message}" for message in failed.values())
    raise RequestError(
        code,
        f"the policy in force has {title}, which is not installed{failures}; installed: {', '.join(sorted(loaded))}",
        "install the package that it came with",
    )


@cache
def _load_group(group: str) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Return the modules by NAME, ganger's own first, and the error messages of those that did not load."""
    loaded: dict[str, ModuleType] = {}
    failed: dict[str, str] = {}
    own = _files(group) if group in _OWN_PACKAGES else ()
    for name, load in (*own, *_entry_points(group)):
        try:
            module = load()
            _check(module, group, loaded)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a plug-in does, the others must not suffer
            failed[name] = f"{name} does not load: {type(error).__name__}: {error}"
            _log.warning("%s", failed[name])
        else:
            loaded[module.NAME] = module
    return loaded, failed


def _files(group: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    package = import_module(_OWN_PACKAGES[group])
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        path = f"{package.__name__}.{info.name}"
        yield path, partial(import_module, path)


def _entry_points(group: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        yield f"{group}:{point.name} ({point.value})", point.load


def _check(module: ModuleType, group: str, loaded: dict[str, ModuleType]) -> None:
    """Raise TypeError or ValueError when a required attribute is missing, or the NAME is taken."""
    if missing := [name for name in _REQUIRED[group] if not hasattr(module, name)]:
        raise TypeError(f"the module has no {', '.join(missing)}")
    if not isinstance(module.NAME, str):
        raise TypeError(f"its NAME is {module.NAME!r}, not text")
    if not re.fullmatch(NAME_PATTERN, module.NAME):
        raise ValueError(f"its NAME is {module.NAME!r}: write up to 63 of a-z, 0-9, '_' and '-', the first not a sign")
    if (owner := loaded.get(module.NAME)) is not None:
        raise ValueError(f"its NAME {module.NAME!r} is taken by {owner.__name__}")
    if group == FRAMEWORKS:
        _check_attributes(module)
    if group == GPUS:
        _check_resources(module, loaded)


def _check_resources(module: ModuleType, loaded: dict[str, ModuleType]) -> None:
    """Raise TypeError or ValueError for a row that is none, or one of a resource that has one."""
    known = {*GPU_RESOURCES, *(row.name for other in loaded.values() for row in other.RESOURCES)}
    if not isinstance(module.RESOURCES, tuple):
        raise TypeError(f"its RESOURCES are {module.RESOURCES!r}, not a tuple")
    for row in module.RESOURCES:
        if not isinstance(row, GpuResource):
            raise TypeError(f"its RESOURCES have {row!r}, not a ganger.model.gpu_resources.GpuResource")
        labels: Any = row.product_labels
        if not isinstance(labels, tuple) or not all(isinstance(text, str) for text in (*row[:2], *labels, *row[3:])):
            raise TypeError(f"its row {row.name} is not of texts, with a tuple of labels")
        if not re.fullmatch(VARIABLE_PATTERN, row.visibility) or (row.hidden and not row.visibility):
            raise ValueError(f"its row {row.name} has visibility {row.visibility!r}: write the name of a variable")
        if not re.fullmatch(RESOURCE_PATTERN, row.name):
            raise ValueError(f"its RESOURCES have {row.name!r}: write DOMAIN/NAME, as nodes have it")
        if row.name in known:
            raise ValueError(f"its RESOURCES have {row.name}, which has a row already")


def _check_attributes(module: ModuleType) -> None:
    """Raise TypeError or ValueError for an attribute of the wrong type."""
    if (per := plugin_attribute(module, "PER")) not in PER:
        raise ValueError(f"its PER is {per!r}, not one of {', '.join(PER)}")
    for name, expected in (("NEEDS", str | None), ("PROGRAMS", tuple), ("AGENT", bool), ("ROLES", tuple | None)):
        if not isinstance(value := plugin_attribute(module, name), expected):
            raise TypeError(f"its {name} is {value!r}, not {expected}")
    for name in (name for name in (*_REQUIRED[FRAMEWORKS], *_DEFAULTS) if name.islower()):
        if not callable(value := getattr(module, name, _no_files)):
            raise TypeError(f"its {name} is {value!r}, not a function")
