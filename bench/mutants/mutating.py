"""Generator of a fixed sample of mutants: one JSON line each, with the file, the change and the changed text.

A program in an environment of its own (`make setup-mutants`): `mutating.py SEED COUNT FILE...`, run by `mutants`.
Places in the files are drawn evenly, then one of the operators that can change something there. The draw depends on the
text of a function alone: a change elsewhere leaves its mutants, and their results, as they are. Annotations are not
drawn from: the type checker covers them.
"""

import ast
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor

Place = tuple[str, int, int, int, int]
"""(file, line and column where it begins, where it ends)"""
Change = tuple[str, int]
"""(operator, which of its occurrences in the file)"""


def places(file: str) -> Iterator[tuple[Place, Change]]:
    """Yield every change that an operator without arguments can make in a file, annotations excepted."""
    source = Path(file).read_text()
    nodes, hints = list(ast_nodes(get_ast(source))), list(_annotations(source))
    for name in plugins.operator_names():
        kind = plugins.get_operator(name)
        if kind.arguments():
            continue
        positions = (position for node in nodes for position in kind().mutation_positions(node))
        for occurrence, (begin, end) in enumerate(positions):
            if not any(first <= begin and end <= last for first, last in hints):
                yield (file, *begin, *end), (name, occurrence)


def _annotations(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if hint is not None:
                yield (hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset)


def numbered(file: str, seed: int, file_places: list[Place]) -> Iterator[tuple[int, Place]]:
    """Yield a number for each of these places in a file.

    It depends on the seed, the function of the place and the position in it; outside of functions on the line.
    """
    source = Path(file).read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for place in file_places:
        enclosing = [node for node in functions if node.lineno <= place[1] <= (node.end_lineno or 0)]
        first, last = (enclosing[-1].lineno, enclosing[-1].end_lineno) if enclosing else (place[1], place[1])
        inside = (place[1] - first, place[2], place[3] - place[1], place[4])
        text = "\n".join((file, *lines[first - 1 : last]))
        yield int(sha256(f"{seed} {inside} {text}".encode()).hexdigest(), 16), place


def main(seed: int, count: int, files: list[str]) -> None:
    """Print the sample."""
    changes: dict[Place, list[Change]] = {}
    for file in files:
        for place, change in places(file):
            changes.setdefault(place, []).append(change)
    numbered_places = (numbered(file, seed, [place for place in changes if place[0] == file]) for file in files)
    for number, place in sorted(pair for pairs in numbered_places for pair in pairs)[:count]:
        candidates = sorted(changes[place])
        name, occurrence = candidates[number % len(candidates)]
        text = MutationVisitor.mutate_code(Path(place[0]).read_text(), plugins.get_operator(name)(), occurrence)
        row = {"file": place[0], "line": place[1], "operator": name.partition("/")[2], "text": text}
        print(json.dumps({"key": f"{number:064x}"[:16], **row}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
