"""The one error every face shows: what was refused, why, and what to type next.

Raised by `engine.loop`, `engine.service` and `engine.spec`; REST turns it into problem+json, the CLI into text and an
exit code.
"""


class Refused(Exception):
    """A request that was not carried out; nothing changed.

    code: stable, for programs, one of `codes.CODES`; detail: what and why; next: what to type; status: HTTP's
    (404 not found, 409 what cannot be done as things are, 422 not what the interface takes, 507 no room on the disk).
    """

    def __init__(self, code: str, detail: str, next: str = "", status: int = 409) -> None:
        """Keep the four parts apart, so that no face has to parse a sentence."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.status = status
