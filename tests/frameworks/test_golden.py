"""Golden environments: what each framework gives each process, name by name, in one table each under golden/.

A row is a variable, the ranks that have it (`*`: all that are started) and its value; then come the commands and the
files. `plain.txt` has what every framework gives; the others only what they add, change, or leave out.
"""

from pathlib import Path

import pytest

from ganger.framework_api.rank_environment import PlacedGang
from ganger.registry import frameworks, plugin_attribute
from tests.frameworks.scenes import FOUR, with_roles

GOLDEN = Path(__file__).parent / "golden"
ROLES = {
    "mxnet": with_roles("scheduler", "worker", "server"),
    "paddle": with_roles("worker", "ps"),
    "tensorflow": with_roles("chief", "worker", "ps", "evaluator"),
    "torch": with_roles("master", "worker", "reader"),
}
COMMAND = ("python", "train.py", "--lr", "1e-3")


def table(framework: str, placed: PlacedGang, argv: tuple[str, ...]) -> str:
    """Return the environment of a gang under a framework, in the format of the golden files."""
    module = frameworks()[framework]
    started = placed.started_by(plugin_attribute(module, "PER"))
    given = {rank: module.rank_environment(placed, rank) for rank in started}
    rows = _rows(given, {} if framework == "plain" else _plain(placed))
    rows += _grouped("command", {rank: " ".join(_argv(framework, placed, rank, argv)) for rank in started}, started)
    if ends := plugin_attribute(module, "ends")(placed):
        rows.append(("ends with", ",".join(map(str, ends)), ""))
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{wide[0]}}  {ranks:{wide[1]}}  {value}".rstrip() for name, ranks, value in rows]
    return "\n".join([*lines, *_files(framework, placed)]) + "\n"


def _plain(placed: PlacedGang) -> dict[int, dict[str, str]]:
    return {rank: frameworks()["plain"].rank_environment(placed, rank) for rank in range(placed.world_size)}


def _rows(given: dict[int, dict[str, str]], known: dict[int, dict[str, str]]) -> list[tuple[str, str, str]]:
    rows = []
    for name in sorted({name for each in (*given.values(), *known.values()) for name in each}):
        values = {rank: each.get(name, "(none)") for rank, each in given.items()}
        if any(known.get(rank, {}).get(name) != value for rank, value in values.items()):
            rows += _grouped(name, values, tuple(given))
    return rows


def _grouped(name: str, values: dict[int, str], all_ranks: tuple[int, ...]) -> list[tuple[str, str, str]]:
    """Return one row for each value that ranks have in common."""
    rows = []
    for value in dict.fromkeys(values.values()):
        ranks = tuple(rank for rank, has in values.items() if has == value)
        shown = value.replace("\n", " | ")
        rows.append((name, "*" if ranks == all_ranks else ",".join(map(str, ranks)), shown))
    return rows


def _argv(framework: str, placed: PlacedGang, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    command: tuple[str, ...] = plugin_attribute(frameworks()[framework], "rank_command")(placed, rank, argv)
    return command


def _files(framework: str, placed: PlacedGang) -> list[str]:
    return [
        f"\n--- {name}\n{text.rstrip()}"
        for name, text in plugin_attribute(frameworks()[framework], "files")(placed).items()
    ]


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_two_nodes_with_two_processes_each(framework: str) -> None:
    assert table(framework, FOUR, COMMAND) == (GOLDEN / f"{framework}.txt").read_text()


@pytest.mark.parametrize("framework", sorted(ROLES))
def test_roles(framework: str) -> None:
    assert table(framework, ROLES[framework], COMMAND) == (GOLDEN / f"{framework}-roles.txt").read_text()
