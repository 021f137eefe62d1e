"""Each command of `ganger` is defined once, for every world, and the table of `ganger.cli` has all of them."""

import ast
from collections import Counter
from pathlib import Path

from ganger import cli

SOURCE = Path(cli.__file__).parent
NAMES = [name for section in cli.COMMANDS.values() for name in section]
SUFFIX = "_command"


def click_commands() -> Counter[tuple[str, str]]:
    """Return (module, name) of every function that is a command of `ganger` itself, not one of a group."""
    modules = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    calls = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    grouped = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith(".add_command")}
    return Counter(
        (".".join(path.relative_to(SOURCE).with_suffix("").parts), node.name.removesuffix(SUFFIX).replace("_", "-"))
        for path, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.endswith(SUFFIX) and node.name not in grouped
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith(("click.command(", "click.group("))
    )


def test_each_command_is_defined_once() -> None:
    table = {(module, name) for section in cli.COMMANDS.values() for name, (module, _) in section.items()}
    assert click_commands() == Counter(table)
    assert len(set(NAMES)) == len(NAMES)


def test_commands_know_one_client() -> None:
    """A transport is chosen where the client is opened: no command and no part of the SDK names another."""
    package = SOURCE.parent
    modules = [*SOURCE.rglob("*.py"), *(package / "sdk").rglob("*.py")]
    imported = {name for path in modules for name in imports(ast.parse(path.read_text()))}
    assert not [name for name in imported if name.startswith("ganger.client.kubernetes")]


def imports(tree: ast.Module) -> list[str]:
    """Return the modules that a module imports, anywhere in it."""
    nodes = list(ast.walk(tree))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]


def test_a_command_without_context_says_why() -> None:
    assert set(cli.WITHOUT_CONTEXT) <= set(NAMES)
    assert set(cli.IN_CLUSTER) <= set(cli.WITHOUT_CONTEXT)
