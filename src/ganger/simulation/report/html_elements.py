"""Elements of the report: sections, paragraphs, keys of charts, and what scrolls by itself.

Elements are of `xml.etree`, so that no text of a trace is ever markup.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement


def add_section(body: Element, title: str, text: str = "") -> Element:
    """Add a section with a heading and what it shows."""
    section = SubElement(body, "section")
    SubElement(section, "h2").text = title
    if text:
        add_paragraph(section, text, "soft")
    return section


def add_paragraph(parent: Element, text: str, css_class: str = "") -> None:
    """Add a paragraph."""
    SubElement(parent, "p", {"class": css_class} if css_class else {}).text = text


def add_scroller(parent: Element, label: str) -> Element:
    """Add a box whose content scrolls sideways where it is wider than the page; the keyboard reaches it."""
    return SubElement(parent, "div", {"class": "wide", "tabindex": "0", "role": "region", "aria-label": label})


def add_key(section: Element, entries: Sequence[tuple[str, str]]) -> None:
    """Add the key of a chart: (name, classes of its line or box)."""
    key = SubElement(section, "div", {"class": "key"})
    for name, classes in entries:
        entry = SubElement(key, "span")
        sample = SubElement(entry, "svg", {"viewBox": "0 0 26 12", "aria-hidden": "true"})
        if classes.startswith("line"):
            SubElement(sample, "path", {"class": classes, "d": "M0,6h26"})
        else:
            SubElement(sample, "rect", {"class": classes, "width": "26", "height": "12"})
        sample.tail = name
