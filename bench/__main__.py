"""Command that runs benches.

`python -m bench --list` names them; `python -m bench NAME...` runs some of them, all by default. The name of a bench is
that of its file, without the folder. Each bench prints the spread of its figures and then one JSON line per figure. The
exit code is 1 if a figure misses its bar, 2 if a name is unknown.
"""

import argparse
import ast
import importlib
import sys
from pathlib import Path

from bench.measure import Figure

FOLDER = Path(__file__).parent


def list_benches(folder: Path = FOLDER) -> dict[str, str]:
    """Return the name and title of every bench."""
    return {
        name: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for name, path in find_benches(folder).items()
    }


def find_benches(folder: Path = FOLDER) -> dict[str, Path]:
    """Return the name and file of every bench: each module of the folder, and of those in it, that defines `run`.

    Raises ValueError if two benches have the same name.
    """
    benches: dict[str, Path] = {}
    for path in sorted((*folder.glob("*.py"), *folder.glob("*/*.py")), key=lambda path: path.stem):
        tree = ast.parse(path.read_text())
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            continue
        if path.stem in benches:
            raise ValueError(f"two benches are called {path.stem}: {benches[path.stem]} and {path}; rename one of them")
        benches[path.stem] = path
    return benches


def run_bench(path: Path) -> list[Figure]:
    """Run the bench in this file."""
    module = ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    figures: list[Figure] = importlib.import_module(module).run()
    return figures


def report(figures: list[Figure]) -> bool:
    """Print spreads, then JSON lines; return whether every figure meets its bar."""
    for figure in figures:
        print(figure.spread())
    for figure in figures:
        print(figure.line(), flush=True)
    return all(figure.holds is not False for figure in figures)


def main() -> int:
    benches = find_benches()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures what ganger is held to.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all, if none is named")
    parser.add_argument("--list", action="store_true", help="name the benches and what each measures")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in benches]:
        parser.error(f"no bench called {', '.join(unknown)}; there are: {', '.join(benches)}")
    if arguments.list:
        width = max(map(len, benches))
        for name, title in list_benches().items():
            print(f"{name:{width}}  {title}")
        return 0
    results = [report(run_bench(benches[name])) for name in arguments.names or benches]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
