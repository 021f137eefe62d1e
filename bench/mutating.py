"""Prints a fixed sample of mutants of some files: one JSON line each, with the file, the change and the text after it.

A program of its own, in an environment of its own (`make setup-mutants`): `mutating.py SEED MANY FILE...`, run by
`mutants`. Places in the files are drawn evenly, then one of the operators that can change something there. What is
drawn follows from the text of a function alone: a change elsewhere leaves its mutants as they are, and what the tests
made of them. Annotations are not drawn from: the type checker holds these.
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
    """Everything that an operator without arguments can change in a file, but annotations."""
    source = Path(file).read_text()
    nodes, hints = list(ast_nodes(get_ast(source))), list(_annotations(source))
    for name in plugins.operator_names():
        kind = plugins.get_operator(name)
        if kind.arguments():
            continue
        found = (position for node in nodes for position in kind().mutation_positions(node))
        for occurrence, (begin, end) in enumerate(found):
            if not any(first <= begin and end <= last for first, last in hints):
                yield (file, *begin, *end), (name, occurrence)


def _annotations(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if hint is not None:
                yield (hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset)


def numbered(file: str, seed: int, found: list[Place]) -> Iterator[tuple[int, Place]]:
    """A number for each of these places in a file: it follows from the seed, from the function that the place is in,
    and from where in it; outside of functions from its line."""
    source = Path(file).read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for place in found:
        around = [node for node in functions if node.lineno <= place[1] <= (node.end_lineno or 0)]
        first, last = (around[-1].lineno, around[-1].end_lineno) if around else (place[1], place[1])
        inside = (place[1] - first, place[2], place[3] - place[1], place[4])
        text = "\n".join((file, *lines[first - 1 : last]))
        yield int(sha256(f"{seed} {inside} {text}".encode()).hexdigest(), 16), place


def main(seed: int, many: int, files: list[str]) -> None:
    """Print the sample."""
    changes: dict[Place, list[Change]] = {}
    for file in files:
        for place, change in places(file):
            changes.setdefault(place, []).append(change)
    drawn = (numbered(file, seed, [place for place in changes if place[0] == file]) for file in files)
    for number, place in sorted(pair for pairs in drawn for pair in pairs)[:many]:
        able = sorted(changes[place])
        name, occurrence = able[number % len(able)]
        text = MutationVisitor.mutate_code(Path(place[0]).read_text(), plugins.get_operator(name)(), occurrence)
        row = {"file": place[0], "line": place[1], "operator": name.partition("/")[2], "text": text}
        print(json.dumps({"key": f"{number:064x}"[:16], **row}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
