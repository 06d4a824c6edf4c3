"""Where the `softmrc` command begins.

Its modules take a second or so to import, and Ctrl-C during that time is nobody's error: until they are there it ends
the process as it ends any other. What comes then is `softmrc.cli`'s.
"""

from __future__ import annotations

import signal


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from softmrc.cli import main as command

    # Also where SIGINT was ignored when we came (nohup, a shell's background, some CI), which Python leaves so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
