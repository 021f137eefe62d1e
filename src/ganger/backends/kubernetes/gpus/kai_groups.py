"""Groups of pods that share one GPU by KAI Scheduler, and the pod that reserves the GPU of each.

KAI's binder makes a pod per shared GPU that asks the device plugin for a whole one and learns which it got; it and the
pods with shares have the group in a label, those with shares of several GPUs one label each. Source:
kai-scheduler/KAI-Scheduler, `pkg/binder/binding/resourcereservation`.
"""

from typing import Final

from ganger.kubeapi.objects import Pod

GROUP: Final = "runai-gpu-group"
_GROUP_PREFIX: Final = f"{GROUP}/"
_DEVICE: Final = "run.ai/reserve_for_gpu_index"
"""Annotation of a reservation pod: the UUID of its GPU, or the index in older versions; absent until it knows."""
_MAX_DIGITS: Final = 4


def gpu_groups(pod: Pod) -> tuple[str, ...]:
    """Return the groups of a pod, one for each GPU that it shares; empty for most pods."""
    labels = pod.metadata.labels
    several = tuple(key.removeprefix(_GROUP_PREFIX) for key in labels if key.startswith(_GROUP_PREFIX))
    return (labels[GROUP],) if GROUP in labels else several


def reserved_device(pod: Pod) -> int | str:
    """Return the index or UUID of the GPU of a reservation pod; empty until it is known."""
    text = pod.metadata.annotations.get(_DEVICE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS else text
