"""The error for arguments of `ganger sim` that cannot be simulated."""


class InvalidArgument(Exception):
    """Arguments that cannot be simulated, with the reason and what to type instead."""

    def __init__(self, reason: str, next: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.next = next

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes an equal error in another process: pickle would call the class with the message alone."""
        return type(self), (self.reason, self.next)
