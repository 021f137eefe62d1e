"""What an hour of each node costs, from the words of `ganger sim --price`. Called by
`simulation.arguments.run_arguments` and `own_days`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from ganger.model.cluster import Node
from ganger.simulation.arguments.argument_error import Unaskable

NO_GPUS: Final = "cpu"
"""What nodes without GPUs are called here."""
_AMOUNT: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def prices_of(words: Sequence[str], nodes: Iterable[Node]) -> Mapping[str, Fraction] | None:
    """By the type of a node's GPUs; None where nothing was said. Unaskable: it cannot be read, or not all is said."""
    if not words:
        return None
    there = {node.gpu_type: NO_GPUS if not node.gpus else node.gpu_type for node in nodes}
    said = dict[str, Fraction]()
    for word in words:
        kind, is_of, amount = word.rpartition("=")
        if not _AMOUNT.fullmatch(amount) or (is_of and not kind):
            raise Unaskable(f"{word!r} is not what an hour of a node costs", "--price 12.50, or --price h100=98.3")
        if kind.lower() in said:
            raise Unaskable(f"{word!r} says again what such a node costs", "say it once")
        said[kind.lower()] = Fraction(amount)
    unknown = [kind for kind in said if kind and kind not in there.values()]
    if unknown:
        named = ", ".join(sorted(filter(None, there.values())))
        raise Unaskable(f"no node is of type {unknown[0]}", f"name one of {named}" if named else "--price 12.50")
    missing = [name for name in there.values() if name not in said and "" not in said]
    if missing:
        raise Unaskable(f"nobody says what a node of type {missing[0]} costs", f"--price {missing[0]}=12.50")
    return {kind: said[name] if name in said else said[""] for kind, name in there.items()}
