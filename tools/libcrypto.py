"""A recent OpenSSL's libcrypto, as a static library: python tools/libcrypto.py [MACHINE]

Debian 12 and other long-lived systems have OpenSSL 3.0, whose AES-256-GCM is half as fast as it could be. Wheels carry
this one, whatever their users' systems have (tools/wheel.py), and `make openssl` has a clone use it. It is Debian 13's
3.5, with Debian's security patches, of which only what encrypts packets is built: a minute. It stays in build/openssl
until Debian has another.

MACHINE: x86_64 or aarch64; without it this one's. Prints the folder, with include/ and lib/libcrypto.a in it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from debian import Archive, Unavailable

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "openssl"
RELEASE = "trixie"

# What is left: AES, ChaCha20-Poly1305, SHA-2, HMAC, X25519, Ed25519, and what those stand on. No file is read, and no
# program's end waited for: packets may be encrypted until the last moment.
WITHOUT = """
    shared module dso engine legacy tests apps docs makedepend deprecated
    autoload-config atexit async comp sock ui-console tls dtls quic multiblock
    cmp cms ct http ocsp rfc3779 srp ts
    aria argon2 bf blake2 camellia cast cmac des dh dsa ec2m gost idea md4 mdc2 ml-dsa ml-kem ocb
    rc2 rc4 rmd160 scrypt seed siphash siv slh-dsa sm2 sm3 sm4 whirlpool
"""


def run(*command: str | Path, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise Unavailable(str(problem)) from None
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, command[:3]))}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def compile_into(made: Path, sources: Path, machine: str) -> None:
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"  # of the compiler's name
    cores = len(os.sched_getaffinity(0))
    less = [f"no-{one}" for one in WITHOUT.split()]
    configure = ["perl", "Configure", f"linux-{machine}", f"--cross-compile-prefix={prefix}", "--openssldir=/nowhere"]
    run(*configure, *less, "-O2", "-ffunction-sections", "-fdata-sections", cwd=sources)
    run("make", f"-j{cores}", "build_generated", cwd=sources)
    run("make", f"-j{cores}", "libcrypto.a", cwd=sources)
    shutil.copytree(sources / "include" / "openssl", made / "include" / "openssl")
    (made / "lib").mkdir()
    shutil.copy(sources / "libcrypto.a", made / "lib")
    shutil.copy(sources / "LICENSE.txt", made)
    (made / "without").write_text(WITHOUT)


def is_current(made: Path) -> bool:
    return (made / "without").is_file() and (made / "without").read_text() == WITHOUT


def static_libcrypto(machine: str) -> Path:
    """The folder it is in: Debian's newest, or without Debian one of earlier."""
    kept = [one for one in sorted(KEPT.glob(f"{machine}-*")) if is_current(one)]
    try:
        archive = Archive(ROOT / "build" / "debian" / RELEASE, RELEASE)
        version = archive.source_version("openssl")
        made = KEPT / f"{machine}-{version}"
        if not is_current(made):
            KEPT.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=KEPT) as name:
                sources = archive.unpack_source("openssl", version, Path(name) / "sources")
                compile_into(Path(name) / "made", sources, machine)
                shutil.rmtree(made, ignore_errors=True)
                shutil.move(Path(name) / "made", made)
        return made
    except Unavailable:
        if not kept:
            raise
        return kept[-1]


def main(machine: str = platform.machine()) -> None:
    try:
        print(static_libcrypto(machine))
    except Unavailable as problem:
        sys.exit(f"No recent OpenSSL: {problem}")


if __name__ == "__main__":
    main(*sys.argv[1:])
