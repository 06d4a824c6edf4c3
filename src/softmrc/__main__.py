"""Where the `softmrc` command begins.

Its modules take a second or so to import, and Ctrl-C during that time is nobody's error: until they are there it ends
the process as it ends any other. Then there are the commands to put together and the arguments to read, where it ends
the process without a word as well; what it means to a command that runs is that command's.
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
