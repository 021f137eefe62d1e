"""A page of HTML as a tree of elements."""

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, SubElement

VOID = ("meta", "br")


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("page")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = SubElement(self._open[-1], tag, {name: value or "" for name, value in attrs})
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        element = self._open[-1]
        if not len(element):
            element.text = (element.text or "") + data


def page_tree(text: str) -> Element:
    """Return the root of the elements of a page; `viewBox` keeps its capital."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    for element in builder.root.iter("svg"):
        element.set("viewBox", element.get("viewbox", ""))
    return builder.root
