"""The values that the caller's environment has for the secrets of a job: these are sent, and nothing else of it.

Called by everything that submits a job. The server reads the spec; here only the names of its secrets are found.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def secret_values(spec: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The values by name, of a spec as a mapping; a secret that is not set here may be in the server's store."""
    return {name: environ[name] for name in _names(spec) if environ.get(name)}


def secret_values_of_text(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The same for a YAML or JSON text of one or more documents; none for what cannot be read: the server says why."""
    if not any(word in environ for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)):
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except (YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for document in documents:
        found |= secret_values(document, environ) if isinstance(document, Mapping) else {}
    return found


def _names(spec: Mapping[str, Any]) -> Iterator[str]:
    """Every name under secrets, and every variable without a value."""
    secrets, roles = spec.get("secrets"), spec.get("roles")
    yield from (name for name in (secrets if isinstance(secrets, list) else ()) if isinstance(name, str))
    mappings = [spec, *(roles.values() if isinstance(roles, Mapping) else ())]
    for env in (each.get("env") for each in mappings if isinstance(each, Mapping)):
        for name, value in env.items() if isinstance(env, Mapping) else ():
            if value is None and isinstance(name, str):
                yield name
