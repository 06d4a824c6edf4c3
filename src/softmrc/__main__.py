"""Where the `softmrc` command begins.

Ctrl-C while modules are imported kills the process without a message, as SIGINT does by default: while `softmrc.cli` is
imported, and while `softmrc.cli.lazy` imports the given command. While the arguments are parsed, Ctrl-C
exits with 130, also without a message. What it means to a running command is that command's.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from softmrc.cli import main as command

    try:
        # Also where SIGINT was ignored when we came (nohup, a shell's background, some CI), which Python leaves so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
