"""Writes the JSON Schema of job files, docs/job.schema.json. Run: python docs/generate_schema.py"""
# ruff: noqa: INP001 - a script, found by its path

import json
from pathlib import Path
from typing import Final

from ganger.spec import json_schema

FILE: Final = Path(__file__).parents[1] / "src" / "ganger" / "job.schema.json"
"""In the package, so that `ganger init` can point an editor to it; docs/ has a link."""


def page() -> str:
    """The schema as text."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(page())
