"""Foreign pods: created by other programs, and scheduled by ganger."""
