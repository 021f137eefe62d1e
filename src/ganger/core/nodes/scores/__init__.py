"""Placement scores of ganger itself, one module each, as `core.nodes.score_interface` describes them."""

from collections.abc import Callable

from ganger.core.nodes.score_interface import Score
from ganger.core.nodes.scores import fgd, pack

FindScore = Callable[[str], Score]
"""Returns the score of a name; raises RequestError when it is no longer installed."""


def own_score(name: str) -> Score:
    """Return a score of ganger itself."""
    scores: dict[str, Score] = {pack.NAME: pack, fgd.NAME: fgd}
    return scores[name]
