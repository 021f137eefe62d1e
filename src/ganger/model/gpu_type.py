"""The short name of a GPU by that which its maker gives it. Called by every backend that finds GPUs: the same hardware
has the same name in each world.
"""

import re

_MAKER = re.compile(r"\b(nvidia|tesla|quadro|geforce|graphics|device)\b", re.IGNORECASE)


def gpu_type(name: str) -> str:
    """The short name of a GPU by the driver's: `h100` for "NVIDIA H100 80GB HBM3", `rtx4090` for "GeForce RTX 4090".

    The rule: without the words of the maker (NVIDIA, Tesla, Quadro, GeForce), the first word that has a digit; a bare
    number is joined to the word before it; lower case. A name without digits is taken whole, with `-` for blanks.
    """
    words = re.split(r"[\s/-]+", _MAKER.sub(" ", name).strip())
    for before, word in zip(["", *words], words, strict=False):
        if any(letter.isdigit() for letter in word):
            return (before + word if word.isdigit() else word).lower()
    return "-".join(words).lower()
