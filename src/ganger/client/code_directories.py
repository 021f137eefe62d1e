"""The directories that a request copies as the code of its jobs, read from the request alone."""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def code_directories(request: Mapping[str, Any]) -> set[str]:
    """Return the directories that a request names as code: those of overrides, or else of every document."""
    overriding = (request.get("overrides") or {}).get("code")
    if overriding is not None:
        codes = [overriding]
    elif request.get("spec_text") is not None:
        codes = [document.get("code") for document in _documents(request["spec_text"])]
    else:
        codes = [(request.get("spec") or {}).get("code")]
    return {code for code in codes if isinstance(code, str)}


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of a job file; none of an invalid one, which the server reports."""
    if not re.search(r"\bcode\b", text):
        return
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except (YAMLError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return
    yield from (document for document in documents if isinstance(document, Mapping))
