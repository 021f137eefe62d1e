"""YAML 1.2, which includes JSON, as a document: every key and value with its line and column.

Errors of the text itself are found here: syntax, encoding, duplicate keys, tags, size.
"""

import re
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.reader import ReaderError

from ganger.spec.spec_document import (
    MAX_DEPTH,
    MAX_VALUES,
    Document,
    Loc,
    SourcePosition,
    Walk,
    is_encodable,
    join_surrogates,
    quote,
    spec_error,
)

MAX_BYTES: Final = 1 << 20

_TAG: Final = "tag:yaml.org,2002:"
_TEXT: Final = (f"{_TAG}str", f"{_TAG}timestamp")
"""A date is text here: no field is one."""
_NUMBERS: Final = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null")
_LEAST: Final = {
    "job": "a job needs at least `run: COMMAND`",
    "network profile": "it needs at least kind: NetworkProfile, metadata.name and spec",
    "policy": "what holds without a document is in force with `ganger policy apply --version 0`",
}
_MARKER: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""At the beginning of a line this is always a marker: text inside a value is indented, or it is not YAML."""
_NOTHING: Final = re.compile(r"(---)?([ \t\r\n]*(#[^\n]*|\.\.\.)?(\n|$))*")
_HINTS: Final = {
    r"found character '\t'": "a tab: YAML is indented with spaces",
    "mapping values are not allowed": (
        "a ':' after a value: put text that contains ': ' in quotes, or begin the key below the one before it"
    ),
    "but found another document": "a second document: `ganger submit -f FILE` takes a file of several jobs",
    "found undefined alias": "an alias of nothing: put text that begins with '*' in quotes",
    "found character '%'": "text that begins with '%': put it in quotes",
    "found character '@'": "text that begins with '@': put it in quotes",
    "found character '`'": "text that begins with '`': put it in quotes",
}


def read_text(text: str | bytes, filename: str, of: str = "job") -> Document:
    """Return the document of `text`, `of` a job, policy ...; raise bad_spec with its position if it is unreadable."""
    decoded = _decoded(text, filename, of)
    try:
        root = _compose(decoded, filename)
    except YAMLError as error:
        raise spec_error(_of_yaml(error, decoded, filename)) from None
    except (ValueError, OverflowError) as error:
        what = f"this is not YAML: a character code that does not exist, or a number too long: {error}"
        raise spec_error((_at(filename, 1, 1), what)) from None
    if root is None:
        raise spec_error((_at(filename, 1, 1), f"the file is empty: {_LEAST[of]}"))
    document = Document(filename)
    document.data = _TextWalk(document).node(root, ())
    return document


def documents(text: str) -> list[str]:
    """Return the documents of a file, padded with empty lines to keep their line numbers, without empty ones."""
    starts = [0, *(marker.start() for marker in _MARKER.finditer(text))]
    ends = [*starts[1:], len(text)]
    pieces = [(start, text[start:end]) for start, end in zip(starts, ends, strict=True)]
    return ["\n" * text.count("\n", 0, start) + piece for start, piece in pieces if not _NOTHING.fullmatch(piece)]


class _TextWalk(Walk):
    """Fills a document from the tree of a YAML parser."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.constructor = YAML(typ="safe", pure=True).constructor

    def node(self, node: Node, path: Loc) -> Any:
        # Nothing has no place of its own; its key has.
        empty = isinstance(node, ScalarNode) and not node.value and not node.style and path in self.document.keys
        place = self.document.values[path] = self.enter(
            path, self.document.keys[path] if empty else _place(node, self.document.where)
        )
        if isinstance(node, ScalarNode):
            return self.scalar_node(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self.unreadable(path, place, f"the tag {quote(node.tag)} is not supported: remove it")
            return None
        if isinstance(node, MappingNode):
            return self.mapping_node(node, path)
        return [self.node(item, (*path, index)) for index, item in enumerate(node.value)]

    def mapping_node(self, node: MappingNode, path: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = _place(key_node, self.document.where)
            if not isinstance(key_node, ScalarNode) or not is_encodable(key_node.value):
                self.unreadable((*path, place.line, place.column), place, "a key is one word of text")
                continue
            name = join_surrogates(key_node.value)
            if key_node.tag == f"{_TAG}merge":
                self.unreadable((*path, place.line, place.column), place, "'<<' is not supported: write the keys out")
            elif name in data:
                again = (
                    f"{quote(name)} is given twice, first on line {self.document.keys[*path, name].line}: remove one"
                )
                self.unreadable((*path, place.line, place.column), place, again)
            else:
                self.document.keys[*path, name] = place
                data[name] = self.node(value_node, (*path, name))
        return data

    def scalar_node(self, node: ScalarNode, path: Loc) -> Any:
        if node.tag in _TEXT:
            return self.text(node.value, path)
        if node.tag not in _NUMBERS:
            what = f"the tag {quote(node.tag)} is not supported: remove it, or put text that begins with '!' in quotes"
            self.unreadable(path, self.document.values[path], what)
            return None
        try:
            value = self.constructor.construct_object(node)
        except (ValueError, KeyError, OverflowError):
            self.unreadable(path, self.document.values[path], f"{quote(node.value)} is not a number that can be read")
            return None
        if value is not None:
            self.document.texts[path] = node.value
        return value


def _decoded(text: str | bytes, filename: str, of: str) -> str:
    """Return the text, with tabs in JSON as spaces; raise bad_spec if it is too long or not UTF-8."""
    if len(text) > MAX_BYTES:
        what = f"the file is longer than {MAX_BYTES >> 20} MiB: is it a {of} at all?"
        raise spec_error((_at(filename, 1, 1), what))
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            line, column = error.object.count(b"\n", 0, error.start), error.object.rfind(b"\n", 0, error.start)
            place = _at(filename, line + 1, error.start - column)
            raise spec_error((place, f"byte {text[error.start]:#x} is not UTF-8: save it as UTF-8")) from None
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        text = re.sub(r"^[ \t]+", lambda indent: indent[0].replace("\t", " "), text, flags=re.MULTILINE)
    return text


def _compose(text: str, filename: str) -> Node | None:
    """Return the tree of the one document; a first pass only counts, because composing may take exponential time."""
    depth = 0
    for count, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        place = _place(event, filename)
        if depth > MAX_DEPTH:
            raise spec_error((place, f"the document is nested more than {MAX_DEPTH} deep"))
        if count > 2 * MAX_VALUES and isinstance(event, ScalarEvent | AliasEvent):
            raise spec_error((place, f"the document has more than {MAX_VALUES} values"))
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    root: Node | None = yaml.compose(text)
    return root


def _place(marked: Node | Event, filename: str) -> SourcePosition:
    return _at(filename, marked.start_mark.line + 1, marked.start_mark.column + 1)


def _at(filename: str, line: int, column: int) -> SourcePosition:
    return SourcePosition(text=True, line=line, column=column, where=filename)


def _of_yaml(error: YAMLError, text: str, filename: str) -> tuple[SourcePosition, str]:
    """Return position and sentence of a syntax error."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        place = _at(filename, before.count("\n") + 1, len(before) - before.rfind("\n"))
        return place, f"character {ord(text[error.position]):#x} cannot be in a text file: remove it"
    mark = getattr(error, "problem_mark", None)
    place = _at(filename, mark.line + 1, mark.column + 1) if mark else _at(filename, 1, 1)
    if not isinstance(error, MarkedYAMLError) or error.problem is None:
        return place, f"this is not YAML: {error}"
    for beginning, hint in _HINTS.items():
        if error.problem.startswith(beginning):
            return place, f"this is not YAML: {hint}"
    context = f", {error.context}" if error.context else ""
    return place, f"this is not YAML: {error.problem}{context}"
