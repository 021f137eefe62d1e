"""Device selectors: expressions of the Common Expression Language (CEL) in the environment of ResourceClaims.

`device` has `driver`, `attributes["DOMAIN"].NAME` and `capacity["DOMAIN"].NAME`; quantities and semantic versions are
compared by methods. An expression that cannot be compiled or evaluated is an error with a reason. The interpreter stops
after a fixed number of iterations, so that no expression takes long. Source: "Dynamic Resource Allocation" and "Common
Expression Language in Kubernetes" of the Kubernetes documentation.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from ganger.backends.kubernetes.devices.semantic_version import parse_version, version_key
from ganger.kubeapi.device_objects import Attribute, SliceDevice
from ganger.kubeapi.quantity import parse_quantity

MAX_EXPRESSION: Final = 10 << 10
"""Characters; the API server accepts no longer one either."""
MAX_RESULTS: Final = 1 << 10
"""Results for drivers that are kept."""
_DOMAIN: Final = re.compile(r"""\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
_OF_ONE_DEVICE: Final = re.compile(r"\b(attributes|capacity|allowMultipleAllocations)\b|\[")
"""Words without which an expression is about the driver alone."""


class SelectorError(Exception):
    """An expression that cannot be compiled, or not be evaluated for a device."""


class _Program(NamedTuple):
    expression: Any
    domains: tuple[str, ...]
    """Domains that it names: those that a device has nothing of are empty for it."""


class Selectors:
    """Evaluates expressions, and remembers results that depend on the driver alone."""

    def __init__(self) -> None:
        self._by_driver: dict[tuple[str, str], bool] = {}

    def compile(self, expression: str) -> None:
        """Compile an expression. Raises SelectorError if it is not valid."""
        _compile(expression)

    def holds(self, expression: str, driver: str, device: SliceDevice) -> bool:
        """Return whether an expression is true of a device. Raises SelectorError."""
        if _OF_ONE_DEVICE.search(expression):
            return _evaluate(expression, driver, device)
        key = expression, driver
        if key not in self._by_driver:
            if len(self._by_driver) >= MAX_RESULTS:
                self._by_driver.clear()
            self._by_driver[key] = _evaluate(expression, driver, device)
        return self._by_driver[key]


def qualified(name: str, driver: str) -> str:
    """Return the qualified name of an attribute; without a domain it is the driver's."""
    return name if "/" in name else f"{driver}/{name}"


def attribute_value(attribute: Attribute) -> bool | int | str | list[Any] | None:
    """Return the value of an attribute; of a version its parts."""
    if attribute.version is not None:
        return parse_version(attribute.version)
    return next((each for each in (attribute.integer, attribute.flag, attribute.string) if each is not None), None)


def _evaluate(expression: str, driver: str, device: SliceDevice) -> bool:
    program = _compile(expression)
    fields = _fields(driver, device, program.domains)
    try:
        result = program.expression.eval(data={"device": fields})
        value, is_error = result.value(), result.type().name() == "ERROR"
    except RuntimeError as error:  # it was stopped
        value, is_error = error, True
    if type(value) is not bool:
        reason = str(value).splitlines()[0] if is_error else "it is neither true nor false"
        raise SelectorError(f"the selector {_shortened(expression)} fails for the device {device.name}: {reason}")
    return value


def _fields(driver: str, device: SliceDevice, domains: tuple[str, ...]) -> dict[str, Any]:
    try:
        attributes = {name: attribute_value(each) for name, each in device.attributes.items()}
        capacity = {name: _quantity(each.value) for name, each in device.capacity.items()}
    except ValueError as error:
        raise SelectorError(f"the device {device.name} of {driver} has a value that is not valid: {error}") from None
    return {
        "driver": driver,
        "attributes": _by_domain(attributes, driver, domains),
        "capacity": _by_domain(capacity, driver, domains),
        "allowMultipleAllocations": device.allow_multiple_allocations,
    }


def _by_domain(values: Mapping[str, Any], driver: str, domains: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for name, value in values.items():
        domain, _, identifier = qualified(name, driver).partition("/")
        nested.setdefault(domain, {})[identifier] = value
    return nested


@lru_cache(maxsize=1 << 10)
def _compile(expression: str) -> _Program:
    if len(expression) > MAX_EXPRESSION:
        raise SelectorError(f"a selector of {len(expression)} characters: at most {MAX_EXPRESSION} are evaluated")
    try:
        program = _environment().compile(expression)
    except RuntimeError as error:
        reason = re.sub(r"^.*?ERROR: <input>:", "at ", str(error).splitlines()[0])
        raise SelectorError(f"the selector {_shortened(expression)} does not compile: {reason}") from None
    domains = tuple(dict.fromkeys(double or single for double, single in _DOMAIN.findall(expression)))
    return _Program(program, domains)


@cache
def _environment() -> Any:
    """Return the environment of device selectors; the interpreter is loaded with the first of them."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    number, version, text = cel.Type.DOUBLE, cel.Type.List(cel.Type.DYN), cel.Type.STRING
    whole, flag = cel.Type.INT, cel.Type.BOOL

    def compared(name: str, result: Any, of_order: Any) -> Any:
        overloads = [
            cel.Overload(
                f"{name}_{kind}",
                result,
                [of, of],
                is_member=True,
                impl=lambda a, b, key=key: of_order(_order(key, a, b)),
            )
            for kind, of, key in (("quantity", number, float), ("version", version, version_key))
        ]
        return cel.FunctionDecl(name, overloads)

    def from_text(name: str, result: Any, parse: Any) -> Any:
        return cel.FunctionDecl(name, [cel.Overload(f"{name}_string", result, [text], impl=parse)])

    functions = [
        compared("compareTo", whole, int),
        compared("isGreaterThan", flag, lambda order: order > 0),
        compared("isLessThan", flag, lambda order: order < 0),
        from_text("quantity", number, _quantity),
        from_text("isQuantity", flag, lambda value: _is_valid(_quantity, value)),
        from_text("semver", version, parse_version),
        from_text("isSemver", flag, lambda value: _is_valid(parse_version, value)),
        *(
            cel.FunctionDecl(name, [cel.Overload(f"{name}_version", whole, [version], is_member=True, impl=part)])
            for name, part in (("major", lambda v: v[0]), ("minor", lambda v: v[1]), ("patch", lambda v: v[2]))
        ),
    ]
    extensions = [ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()]
    return cel.NewEnv(variables={"device": cel.Type.DYN}, functions=functions, extensions=extensions)


def _order(key: Any, first: Any, second: Any) -> int:
    one, other = key(first), key(second)
    return int(one > other) - int(one < other)


def _quantity(text: str) -> float:
    """Return a quantity as CEL has it here: whole numbers are exact up to 2^53."""
    return float(parse_quantity(text))


def _is_valid(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _shortened(expression: str) -> str:
    flat = " ".join(expression.split())
    return flat if len(flat) <= 80 else f"{flat[:79]}…"
