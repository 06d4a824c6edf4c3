"""Exit codes, the same for all commands."""

from __future__ import annotations

FAILED, USAGE, NO, INTERRUPTED = 1, 2, 3, 130
TABLE = {
    0: "done",
    FAILED: "failed: no answer, no permission, no device",
    USAGE: "wrong usage, or a setting or file that is not allowed",
    NO: "the command ran and the answer is no; its help says when",
    INTERRUPTED: "interrupted by Ctrl-C (143: by SIGTERM)",
}
# When a command that ran exits with NO.
MEANS_NO = {
    "ping": "a probe was lost, or a plane does not carry full-size packets",
    "ctl probe": "a probe was not answered",
    "ctl deny": "some entries, or none, were denied",
    "ctl allow": "some entries, or none, were allowed",
    "ctl push": "a device did not apply the whole denylist",
    "mapper lab": "a component is broken",
    "mapper sim": "a component is broken",
    "mapper ecmp": "a component is broken",
    "plan": "no design can be built",
    "study": "no design meets the constraints",
    "sim": "the run did not finish",
}
