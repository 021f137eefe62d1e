"""The one error every face shows: what was refused, why, and what to type next.

Raised by `engine.loop`, `engine.service` and `engine.spec`; REST turns it into problem+json, the CLI into text and an
exit code.
"""


class Refused(Exception):
    """A request that was not carried out; nothing changed.

    code: stable, for programs; detail: what and why; next: what to type; status: the HTTP status that fits
    (404 not found, 409 conflict with the present state, 422 bad request, 507 no room on the disk).
    """

    def __init__(self, code: str, detail: str, next: str = "", status: int = 422) -> None:
        """Keep the four parts apart, so that no face has to parse a sentence."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.status = status
