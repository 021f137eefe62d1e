"""The JSON Schema of job files."""

import json
from pathlib import Path
from typing import Final

from ganger.spec import json_schema

FILE: Final = Path(__file__).parents[2] / "src" / "ganger" / "job.schema.json"
"""In the package, so that `ganger init` can refer an editor to it; docs/reference has a link."""


def text() -> str:
    """Return the schema as text."""
    return json.dumps(json_schema(), indent=2) + "\n"
