"""Packages of any Debian release and processor, from wherever this machine's apt gets its own, without installing them.

apt keeps lists in a folder of ours, so that the machine's own stay as they are and root is not needed; it checks
what it fetches by the archive's signature, as ever.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from functools import cmp_to_key
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
RELEASE = re.compile(r"^'([^']+)/dists/([^/']+)/InRelease'", re.MULTILINE)


class Unavailable(Exception):
    """What was wanted cannot be had here; says why in a line."""


def codename() -> str:
    """Of the Debian that this machine runs."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    if facts.get("ID") != "debian" or "VERSION_CODENAME" not in facts:
        raise Unavailable("this machine does not run Debian")
    return facts["VERSION_CODENAME"]


def apt(*words: str | Path, cwd: Path | None = None, program: str = "apt-get") -> str:
    command = [program, "-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", *map(str, words)]
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"{program}: {problem}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise Unavailable(f"{program} {words[-1]}: {said[0] if said else f'ended with {done.returncode}'}")
    return done.stdout


class Archive:
    """A release of Debian, its updates and security updates included: packages for one processor, or else sources."""

    def __init__(self, folder: Path, release: str, architecture: str = "") -> None:
        own = codename()
        sites = [(uri, suite) for uri, suite in RELEASE.findall(apt("update", "--print-uris")) if suite.startswith(own)]
        if not sites:
            raise Unavailable(f"apt knows no archive of Debian's {own}")
        folder = folder.resolve()
        for one in ("lists/partial", "cache/archives/partial"):
            (folder / one).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        sources = folder / "debian.sources"
        sources.write_text(
            "\n".join(
                f"Types: {'deb' if architecture else 'deb-src'}\nURIs: {uri}\n"
                f"Suites: {release}{suite.removeprefix(own)}\nComponents: main\nSigned-By: {KEYS}\n"
                for uri, suite in dict.fromkeys(sites)
            )
        )
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "_apt",  # no other user may write into our folders
        }
        if architecture:
            settings |= {"APT::Architecture": architecture, "APT::Architectures": architecture}
        self._options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        self._apt("update")

    def source_version(self, source: str) -> str:
        """The newest that this release has and this machine can get: mirrors lack some of what lists promise."""
        shown = self._apt("showsrc", "--only-source", source, program="apt-cache")
        versions = set(re.findall(r"^Version: (.+)$", shown, re.MULTILINE))
        problem = Unavailable(f"Debian has no sources of {source}")
        for version in sorted(versions, key=cmp_to_key(_compare), reverse=True):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    self._apt("source", "--dsc-only", "--download-only", f"{source}={version}", cwd=Path(folder))
                except Unavailable as one:
                    problem = one
                else:
                    return version
        raise problem

    def unpack_source(self, source: str, version: str, into: Path) -> Path:
        """Its folder, with Debian's patches applied."""
        into.mkdir(parents=True)
        self._apt("source", f"{source}={version}", cwd=into)
        return next(one for one in into.iterdir() if one.is_dir())

    def unpack(self, packages: list[str], into: Path) -> None:
        """These packages, and none that they need."""
        fetched = into.parent / f"{into.name}.packages"
        fetched.mkdir(parents=True, exist_ok=True)
        self._apt("download", *packages, cwd=fetched)
        for package in fetched.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, into], check=True)

    def _apt(self, *words: str, cwd: Path | None = None, program: str = "apt-get") -> str:
        return apt(*self._options, *words, cwd=cwd, program=program)


def _compare(one: str, other: str) -> int:
    return -1 if subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=False).returncode == 0 else 1
