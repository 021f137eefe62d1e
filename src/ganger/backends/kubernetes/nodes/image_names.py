"""The images that jobs ask for, as nodes name those that they have.

A node lists dozens of images, of which placement needs to know only these. An image stays known when its last job is
gone, since the next job often asks for it again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from ganger.kubeapi.objects import ApiStruct, CustomObject

MAX_IMAGES: Final = 1_000
"""Number of known images beyond which those are forgotten that no job asks for."""
_DEFAULT_REGISTRY: Final = "docker.io"


class _ImageSpec(ApiStruct, frozen=True):
    """The image in the spec of a GangJob."""

    image: str | None = None


class AskedImages:
    """Images of GangJobs, in the words of their specs."""

    def __init__(self) -> None:
        self._jobs = Counter[str]()
        self._words: dict[str, set[str]] = {}
        """Words of specs for an image, by its full name."""

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> str:
        """Handle a change of a GangJob. Return the full name of an image that was not known; else nothing."""
        old, new = _image_of(before), _image_of(after)
        if old == new:
            return ""
        self._jobs[old] -= 1
        self._jobs[new] += 1
        if not new or new in self._words.get(full_name(new), ()):
            return ""
        if len(self._jobs) > MAX_IMAGES:
            self._forget_unused()
        self._words.setdefault(full_name(new), set()).add(new)
        return full_name(new)

    def of_node(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the known images among those that a node has, in the words of specs, in order."""
        return tuple(sorted({word for name in names if name in self._words for word in self._words[name]}))

    def _forget_unused(self) -> None:
        self._jobs = +self._jobs
        self._words = {
            name: used for name, words in self._words.items() if (used := {word for word in words if self._jobs[word]})
        }


def full_name(image: str) -> str:
    """Return an image's name with registry and tag, or with registry and digest, as a container runtime has it."""
    name, _, digest = image.partition("@")
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"{_DEFAULT_REGISTRY}/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"{_DEFAULT_REGISTRY}/{name}"
    path, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{path}{slash}{repository}" + (f"@{digest}" if digest else f":{tag or 'latest'}")


def _image_of(job: CustomObject | None) -> str:
    """Return the image of a GangJob; empty for none, and for a spec that is invalid."""
    try:
        return "" if job is None else msgspec.json.decode(job.spec, type=_ImageSpec).image or ""
    except msgspec.DecodeError:
        return ""
