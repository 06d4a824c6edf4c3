"""Does what a new user does in the first hour, and compares with what the pages say: tools/first_hour.py [WHEEL...]

The wheels are softmrc's and softmrc-bench's; without any it builds them (tools/wheel.py). Then,
in a clean virtual environment and an empty folder: what the pages install and run, every benchmark in its quick
form, the help of every command, and settings that are wrong. A traceback anywhere is a failure, and so is a session
that prints something else than its page shows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "guides" / "connections.md").read_text()
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# What is tried, and what must be among the words.
RIGHT: list[tuple[list[str], str]] = [
    (["--version"], "softmrc "),
    (["info"], "planes"),
    (["examples"], "t1-reboot"),
    (["sim", "slow-link", "--quiet"], ""),
    (["plan", "--gpus", "131072", "--nic", "800G", "--switch", "51.2T"], "131,072 GPUs"),
    (["assess", "lab", "--trials", "2"], "Fabric lab"),
    (["demo", "--engine"], "every byte in its place"),
]
# In their quick forms. Without root, torch or a GPU some end with a line that names what is missing.
BENCHES = ("engine", "udp", "sealed", "sim", "assess", "operate", "failover", "lab", "allreduce", "join", "nccl")
WRONG: list[tuple[list[str], dict[str, str], str]] = [
    (["sim", "t1-rebot"], {}, "Did you mean t1-reboot?"),
    (["ping", "127.0.0.1:1"], {}, "nothing listens on"),
    (["ping", "nowhere"], {}, "HOST:PORT"),
    (["perf", "--planes", "eth77"], {}, "no interface eth77"),
    (["perf", "--host", "0.0.0.0", "--port", "0"], {}, "secret"),
    (["perf", "--port", "0"], {"SOFTMRC_PLANES": "lo,lo"}, "names lo twice"),
    (["ping", "127.0.0.1:1"], {"SOFTMRC_PLANS": "eth0"}, "Did you mean SOFTMRC_PLANES?"),
    (["ping", "127.0.0.1:1"], {"SOFTMRC_CONFIG": "/nowhere.toml"}, "no such file"),
    (["demo", "--steps", "2"], {}, "at least 20"),
    (["demo", "--output", "/nowhere/x.html"], {}, "cannot write"),
    (["dissect", "/nowhere.pcapng"], {}, "no such file"),
]


class NewUser:
    """A clean environment, and what was wrong there."""

    def __init__(self, folder: Path, wheels: list[Path]) -> None:
        self.bin = folder / "venv" / "bin"
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.wrong: list[str] = []
        venv.create(folder / "venv", with_pip=True)
        install = [self.bin / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels]
        subprocess.run(install, check=True, capture_output=True)

    def run(self, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.folder), "LANG": "C.UTF-8", **more}
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=900)
        if "Traceback" in done.stdout + done.stderr:
            self.wrong.append(f"{' '.join(arguments)}: a traceback\n{done.stderr[-500:]}")
        return done

    def expect(self, what: str, holds: bool, seen: str) -> None:
        print(f"  {'ok ' if holds else 'BAD'} {what}")
        if not holds:
            self.wrong.append(f"{what}\n{seen[-500:]}")

    def try_everything(self) -> None:
        for arguments, words in RIGHT:
            done = self.run("softmrc", *arguments)
            self.expect(f"softmrc {' '.join(arguments)}", done.returncode == 0 and words in done.stdout, done.stderr)
        for name in BENCHES:
            began = time.monotonic()
            done = self.run("softmrc", "bench", name, "--quick", "--json")
            lines = [line for line in done.stderr.splitlines() if line.startswith("softmrc: ")]
            holds = bool(json.loads(done.stdout)) if done.returncode == 0 else len(lines) == 1
            seen = lines[0].removeprefix("softmrc: ") if lines else "figures"
            took = f"{time.monotonic() - began:.0f} s"
            self.expect(f"softmrc bench {name} --quick: {seen[:60]} ({took})", holds, done.stderr)
        for arguments, more, words in WRONG:
            done = self.run("softmrc", *arguments, **more)
            said = [line for line in done.stderr.splitlines() if words in line]
            shown = " ".join([*(f"{name}={value}" for name, value in more.items()), "softmrc", *arguments])
            self.expect(f"{shown}: one line", done.returncode != 0 and len(said) == 1, done.stderr)
        blocks = FENCED.findall(GUIDE)
        at = next(n for n, (kind, text) in enumerate(blocks) if kind == "python" and "Pair(" in text)
        done = self.run("python", "-c", blocks[at][1])
        self.expect("the session of the guide prints what it shows", done.stdout == blocks[at + 1][1], done.stdout)
        names = re.findall(r"^│ (\w[\w-]*) ", self.run("softmrc", "--help", COLUMNS="100").stdout, re.MULTILINE)
        for name in names:
            self.expect(f"softmrc {name} --help", self.run("softmrc", name, "--help").returncode == 0, "")


def main() -> None:
    if len(sys.argv) > 1:
        wheels = [Path(one).resolve() for one in sys.argv[1:]]
    else:
        subprocess.run([sys.executable, ROOT / "tools" / "wheel.py", sys.executable], check=True)
        wheels = list((ROOT / "dist").glob("*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        user = NewUser(Path(folder), wheels)
        user.try_everything()
    if user.wrong:
        sys.exit("\n".join(["", f"{len(user.wrong)} things are not as the pages say:", *user.wrong]))


if __name__ == "__main__":
    main()
