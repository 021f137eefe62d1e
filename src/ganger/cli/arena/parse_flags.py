"""Command lines of Arena, parsed by the table of its flags."""

import getopt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ganger.cli.arena.arena_flags import GLOBAL_NOTED, Flags, Texts


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line of Arena.

    Attributes:
        values: The values of flags by their long names; of one without a value `true`.
        rest: The other words.
        notes: One sentence for each flag that changes nothing.
    """

    values: Mapping[str, Sequence[str]]
    rest: Sequence[str]
    notes: Sequence[str]

    def last(self, name: str, default: str = "") -> str:
        """Return the value of a flag, `default` without it."""
        return self.values.get(name, (default,))[-1]

    def all(self, name: str) -> Sequence[str]:
        """Return the values of a flag that may be repeated."""
        return self.values.get(name, ())


def parse(words: Sequence[str], flags: Flags, command: str) -> Parsed:
    """Return a command line; raise ValueError with a sentence for a flag that there is not, or that is refused."""
    every = {**flags.taken, **flags.noted, **GLOBAL_NOTED, **flags.refused, "n:namespace": ""}
    names = {name_of_flag(option.partition(":")[2]) for option in every}
    switches = {name[:-1] for name in names if name.endswith("!")}
    families = tuple(name[:-1] for name in names if name.endswith("*"))
    prepared = [_prepared(word, switches) for word in words]
    long = [name[:-1] if name.endswith("!") else f"{name}=" for name in names if not name.endswith("*")]
    long += [f"{word[2:].partition('=')[0]}=" for word in prepared if families and word[2:].startswith(families)]
    short = "".join(f"{option[0]}{'' if option.endswith('!') else ':'}" for option in every if option[0] != ":")
    try:
        pairs, rest = getopt.gnu_getopt([word for word in prepared if word], short, long)
    except getopt.GetoptError as error:
        raise ValueError(f"arena {command}: {error.msg}") from None
    letters = {f"-{option[0]}": option[2:].rstrip("!") for option in every if option[0] != ":"}
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(letters.get(name, name.lstrip("-")), []).append(value or "true")
    for option, instead in flags.refused.items():
        if (name := option[1:].strip(":!")) in values:
            raise ValueError(f"arena {command} --{name} is not taken over: {instead}")
    notes = _notes(values, {**flags.noted, **GLOBAL_NOTED})
    return Parsed(values, rest, notes)


def _notes(values: Mapping[str, Sequence[str]], noted: Texts) -> list[str]:
    texts = {name_of_flag(option.partition(":")[2].rstrip("!")): text for option, text in noted.items()}
    families = {name[:-1]: text for name, text in texts.items() if name.endswith("*")}
    notes = []
    for name in values:
        text = texts.get(name) or next((text for start, text in families.items() if name.startswith(start)), None)
        if text:
            notes.append(f"--{name} changes nothing: {text}")
    return notes


def name_of_flag(name: str) -> str:
    """Return a name without capitals: `sync-mode` for `syncMode`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _prepared(word: str, switches: set[str]) -> str:
    """Return a word as getopt takes it: older spellings such as --syncMode, and values of flags that have none."""
    if not word.startswith("--") or word == "--" or re.search(r"\s", word.partition("=")[0]):
        return word
    name, equals, value = word[2:].partition("=")
    name = name_of_flag(name)
    if name in switches and equals:
        return f"--{name}" if value.lower() in ("true", "1") else ""
    return f"--{name}{equals}{value}"
