"""Prints a fixed sample of mutants of some files: one JSON line each, with the file, the change and the text after it.

A program of its own, in an environment of its own (`make setup-mutants`): `mutating.py SEED MANY FILE...`, run by
`mutants`. Places in the files are drawn evenly, then one of the operators that can change something there. Annotations
are not drawn from: the type checker holds these.
"""

import ast
import json
import random
import sys
from collections.abc import Iterator
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


def main(seed: int, many: int, files: list[str]) -> None:
    """Print the sample."""
    changes: dict[Place, list[Change]] = {}
    for file in files:
        for place, change in places(file):
            changes.setdefault(place, []).append(change)
    chance = random.Random(seed)
    for place in chance.sample(sorted(changes), many):
        name, occurrence = chance.choice(changes[place])
        text = MutationVisitor.mutate_code(Path(place[0]).read_text(), plugins.get_operator(name)(), occurrence)
        print(json.dumps({"file": place[0], "line": place[1], "operator": name.partition("/")[2], "text": text}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
