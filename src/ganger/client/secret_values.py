"""Values of a job's secrets from the caller's environment, of which nothing else is sent.

The server parses the spec; here only the names of its secrets are found.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def secret_values(spec: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values by name for a spec as a mapping; a secret that is not set here may be in the server's store."""
    return {name: environ[name] for name in _names(spec) if environ.get(name)}


def secret_values_of_text(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the same for YAML or JSON of one or more documents; empty for invalid text, which the server reports."""
    if not any(word in environ for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)):
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except (YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        return {}
    values: dict[str, str] = {}
    for document in documents:
        values |= secret_values(document, environ) if isinstance(document, Mapping) else {}
    return values


def _names(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield every name under secrets, and every variable without a value."""
    secrets, roles = spec.get("secrets"), spec.get("roles")
    yield from (name for name in (secrets if isinstance(secrets, list) else ()) if isinstance(name, str))
    mappings = [spec, *(roles.values() if isinstance(roles, Mapping) else ())]
    for env in (mapping.get("env") for mapping in mappings if isinstance(mapping, Mapping)):
        for name, value in env.items() if isinstance(env, Mapping) else ():
            if value is None and isinstance(name, str):
                yield name
