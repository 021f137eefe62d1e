"""Every room stands in an import contract: a new one is given its place before it can be used."""

import configparser
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ganger"
FLOORS = ("", "backends")


def rooms() -> Iterator[str]:
    """Dotted names of the packages and modules that lie directly on each floor."""
    for floor in FLOORS:
        for path in sorted((SOURCE / floor).iterdir()):
            is_room = (path / "__init__.py").exists() or (path.suffix == ".py" and path.stem != "__init__")
            if is_room and path.name not in FLOORS:
                yield ".".join(filter(None, ("ganger", floor, path.stem)))


def test_every_room_has_a_contract() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    keys = ("layers", "modules", "source_modules")
    named = {
        word
        for section in contracts.values()
        for key in keys
        for word in section.get(key, "").replace("|", " ").split()
    }
    missing = [room for room in rooms() if not {room, room.rpartition(".")[0] + ".*"} & named]
    assert missing == [], "name it in .importlinter, with what it may not import"
