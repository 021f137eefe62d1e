"""The tables of `ganger.cli` have every command: what is in none of them is never run."""

import ast
from pathlib import Path

from ganger import cli

SOURCE = Path(cli.__file__).parent
NAMES = [name for section in cli.COMMANDS.values() for name in section]
SUFFIX = "_command"


def click_commands() -> set[tuple[str, str]]:
    """Return (module, name) of every function that is a command of `ganger` itself, not one of a group."""
    modules = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    calls = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    grouped = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith(".add_command")}
    return {
        (".".join(path.relative_to(SOURCE).with_suffix("").parts), node.name.removesuffix(SUFFIX).replace("_", "-"))
        for path, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.endswith(SUFFIX) and node.name not in grouped
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith(("click.command(", "click.group("))
    }


def test_every_command_is_in_the_table() -> None:
    listed = {(module, name) for section in cli.COMMANDS.values() for name, (module, _) in section.items()}
    in_context = {(module, name) for module, names in cli.KUBERNETES_COMMANDS.items() for name in names}
    assert click_commands() == listed | in_context


def test_every_command_says_what_it_does_with_a_context() -> None:
    in_context = [name for names in cli.KUBERNETES_COMMANDS.values() for name in names]
    tables = (in_context, cli.CONTROLLER_COMMANDS, cli.KUBERNETES_EQUIVALENTS, cli.CLUSTERLESS_COMMANDS)
    assert sorted(name for table in tables for name in table) == sorted(NAMES), "it is in exactly one of the tables"
