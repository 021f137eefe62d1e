"""A simulation that cannot be. Raised by what reads the arguments of `ganger sim`, told by its errand."""


class Unaskable(Exception):
    """What was asked cannot be simulated: why, and what to ask instead."""

    def __init__(self, reason: str, next: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.next = next
