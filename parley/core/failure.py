"""A client that did not contribute, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Reported by name and left out; the round goes on without it while the quorum holds."""

    client: str
    reason: str
    """The end of a sentence that begins with the client: `raised ValueError: ...`, `gave no answer within 5 s.`"""
    trace: str = ""
    """Where in the code an exception came from, as Python prints it; not stored."""
    fatal: bool = False
    """It has spoilt what others share, so the run cannot go on."""
    lost: bool = False
    """The recipient no longer has the memory that the message builds on."""

    @property
    def malformed(self) -> bool:
        """It sent what no honest client sends."""
        return self.reason.startswith(("sent ", "gave a reply that cannot be used"))
