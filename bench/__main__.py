"""Command that runs benches.

`python -m bench --list` names them; `python -m bench NAME...` runs some of them, all by default. Each bench prints the
spread of its figures and then one JSON line per figure. The exit code is 1 if a figure misses its bar, 2 if a name is
unknown.
"""

import argparse
import ast
import importlib
import sys
from pathlib import Path

from bench.measure import Figure

FOLDER = Path(__file__).parent


def list_benches(folder: Path = FOLDER) -> dict[str, str]:
    """Return the name and title of every bench: each module of the folder, and of its tables, that defines `run`."""
    benches = {}
    for path in (*sorted(folder.glob("*.py")), *sorted(folder.glob("tables/*.py"))):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            benches[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return benches


def report(figures: list[Figure]) -> bool:
    """Print spreads, then JSON lines; return whether every figure meets its bar."""
    for figure in figures:
        print(figure.spread())
    for figure in figures:
        print(figure.line(), flush=True)
    return all(figure.holds is not False for figure in figures)


def main() -> int:
    benches = list_benches()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures what ganger is held to.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all, if none is named")
    parser.add_argument("--list", action="store_true", help="name the benches and what each measures")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in benches]:
        parser.error(f"no bench called {', '.join(unknown)}; there are: {', '.join(benches)}")
    if arguments.list:
        width = max(map(len, benches))
        for name, title in benches.items():
            print(f"{name:{width}}  {title}")
        return 0
    results = [report(importlib.import_module(f"bench.{name}").run()) for name in arguments.names or benches]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
