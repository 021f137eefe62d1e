"""Finds plug-ins: queue orders and frameworks, one module each. Called by `wiring`, `spec` and `engine.launch`.

A file in `policies/` or `frameworks/` is found by itself; a package elsewhere names its module under the entry point
`ganger.policies` or `ganger.frameworks`. Nothing is imported before somebody asks. A plug-in that does not load is left
out, logged and kept in `broken()`: it never hides the others.
"""

import logging
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

from ganger.errors import RequestError

POLICIES: Final = "ganger.policies"
FRAMEWORKS: Final = "ganger.frameworks"

_MUST_HAVE: Final = {
    POLICIES: (
        *("NAME", "LIVENESS_GUARANTEES", "ORDERS_RUNNING", "STARVATION_AGE_MS", "FIXED_RESERVATIONS", "STRICT_ORDER"),
        *("account_key", "gang_key", "key_lower_bound", "fifo_class", "key", "factors", "next_key_change_ms"),
    ),
    FRAMEWORKS: ("NAME", "DOC", "RESERVED", "rank_environment"),
}
PER: Final = ("rank", "node", "gang")
"""Whom ganger starts: every rank; the first rank of each node, which starts the others there; rank 0 alone."""


def _as_it_is(_placed: Any, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    return argv


def _no_files(_placed: Any) -> dict[str, str]:
    return {}


def _all(_placed: Any) -> tuple[int, ...]:
    return ()


def _unknown(_argv: tuple[str, ...]) -> dict[str, int] | None:
    return None


def _fine(_counts: Any) -> None:
    return None


_MAY_HAVE: Final[dict[str, Any]] = {
    "PER": "rank",
    "NEEDS": None,
    "PROGRAMS": (),
    "AGENT": False,
    "ROLES": None,
    "lacks": _fine,
    "rank_command": _as_it_is,
    "files": _no_files,
    "ends": _all,
    "recognise": _unknown,
}
"""What a framework may leave out, and what that means (docs/how-to/frameworks/plug-in.md)."""
_log = logging.getLogger(__name__)


def policies() -> dict[str, ModuleType]:
    """Queue orders by NAME."""
    return _found(POLICIES)[0]


def order(name: str) -> ModuleType:
    """The queue order that a policy document names. Refused (no_such_order) when it was taken away since."""
    found = policies()
    if name not in found:
        # One that does not load has no name: any of these may be it.
        why = "".join(f"; {sentence}" for sentence in _found(POLICIES)[1].values())
        raise RequestError(
            "no_such_order",
            f"the policy in force has the queue order {name}, which is not installed{why}; there are "
            f"{', '.join(sorted(found))}",
            "install the package that it came with",
        )
    return found[name]


def frameworks() -> dict[str, ModuleType]:
    """Frameworks by NAME."""
    return _found(FRAMEWORKS)[0]


def trait(framework: ModuleType, name: str) -> Any:
    """What a framework says under one of the names that it may leave out."""
    return getattr(framework, name, _MAY_HAVE[name])


def broken() -> dict[str, str]:
    """What did not load: the name it was found under, and why."""
    return _found(POLICIES)[1] | _found(FRAMEWORKS)[1]


@cache
def _found(group: str) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Modules by NAME, ganger's own first, and the sentences about those that did not load."""
    found: dict[str, ModuleType] = {}
    failed: dict[str, str] = {}
    for name, load in (*_files(group), *_entry_points(group)):
        try:
            module = load()
            _check(module, group, found)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a plug-in does, the others must not suffer
            failed[name] = f"{name} does not load: {type(error).__name__}: {error}"
            _log.warning("%s", failed[name])
        else:
            found[module.NAME] = module
    return found, failed


def _files(group: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    package = import_module(group)
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        path = f"{group}.{info.name}"
        yield path, partial(import_module, path)


def _entry_points(group: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        yield f"{group}:{point.name} ({point.value})", point.load


def _check(module: ModuleType, group: str, found: dict[str, ModuleType]) -> None:
    """TypeError or ValueError when it lacks a name that every plug-in of its group has, or takes another's."""
    if missing := [name for name in _MUST_HAVE[group] if not hasattr(module, name)]:
        raise TypeError(f"it has no {', '.join(missing)}")
    if not isinstance(module.NAME, str):
        raise TypeError(f"its NAME is {module.NAME!r}, not text")
    if (other := found.get(module.NAME)) is not None:
        raise ValueError(f"its NAME {module.NAME!r} is taken by {other.__name__}")
    if group == FRAMEWORKS:
        _check_traits(module)


def _check_traits(module: ModuleType) -> None:
    """TypeError or ValueError for one that a start would stumble over."""
    if (per := trait(module, "PER")) not in PER:
        raise ValueError(f"its PER is {per!r}, not one of {', '.join(PER)}")
    for name, kind in (("NEEDS", str | None), ("PROGRAMS", tuple), ("AGENT", bool), ("ROLES", tuple | None)):
        if not isinstance(value := trait(module, name), kind):
            raise TypeError(f"its {name} is {value!r}, not {kind}")
    for name in (name for name in (*_MUST_HAVE[FRAMEWORKS], *_MAY_HAVE) if name.islower()):
        if not callable(value := getattr(module, name, _no_files)):
            raise TypeError(f"its {name} is {value!r}, not a function")
