"""The kinds of gangs of other programs, as the controller reads them and as the tests create them."""

from collections.abc import Iterator

from ganger.backends.kubernetes.foreign.gang_kinds import KINDS, PARENTS, GangKind, RoleFields
from tools.generate.markdown import code, table
from tools.operators import OPERATORS
from tools.operators.gangs import OWNED

HEAD = ("kind", "pods of a gang have", "number of pods", "fewest placed together", "suspended by", "tested with")


def gang_kinds() -> Iterator[str]:
    """Return a table with a row for each kind."""
    return table(HEAD, (*(_row(kind) for kind in KINDS), *(_parent_row(kind) for kind in PARENTS.values())))


def _row(kind: GangKind) -> tuple[str, ...]:
    keys = " or ".join(code(key) for key in kind.keys)
    marks = "".join(f", {code(f'{key}: {value}' if value else key)}" for key, value in kind.marks)
    sizes = ", ".join(filter(None, map(_size, kind.roles)))
    return (_title(kind), keys + marks, sizes or "those that exist", _fewest(kind), code(kind.suspend), _tested(kind))


def _parent_row(kind: GangKind) -> tuple[str, ...]:
    needs = f", with {code(kind.suspend_needs)}" if kind.suspend_needs else ""
    return (_title(kind), "those of what it creates", "", "", code(kind.suspend) + needs, _tested(kind))


def _title(kind: GangKind) -> str:
    version = f" {code(f'{kind.resource.group}/{kind.resource.version}')}" if kind.resource else ""
    return f"{kind.name}{version}"


def _size(role: RoleFields) -> str:
    if not role.size:
        return f"1 {role.name}"
    sizes = " x ".join(code(field) for field in role.size)
    return f"{sizes} of each of {code(role.path)}" if role.path else sizes


def _fewest(kind: GangKind) -> str:
    if kind.minimum:
        return f"{code(kind.minimum)}{', or all' if kind.roles else ''}"
    elastic = [field for role in kind.roles for field in role.minimum[:1]]
    if elastic:
        return f"all; with {code(kind.elastic)} {', '.join(map(code, elastic))}"
    if kind.one_by_one:
        return f"all; with more {code(kind.one_by_one)} each by itself"
    if kind.expected:
        driver, executor = kind.roles
        return f"{driver.name}, with nodes kept for the first {code(executor.size[0])} {executor.name}s"
    surplus = [role.name for role in kind.roles if role.is_surplus]
    return f"all but each {surplus[0]}, which is placed by itself" if surplus else "all"


def _tested(kind: GangKind) -> str:
    """Return the operators with which tests create the kind."""
    version = f"{kind.resource.group}/{kind.resource.version}" if kind.resource else ""
    for owned in OWNED.values():
        if (owned.kind, owned.version) == (kind.name, version):
            operators = (f"{name} {OPERATORS[name].version}" for name in owned.operators)
            return ", ".join(operators) or "Kubernetes"
    return "its definition alone"
