"""Builds the extension with a sanitizer and runs tests with it: python tools/sanitize.py address|thread TESTS...

    address   AddressSanitizer and UndefinedBehaviorSanitizer: what is read, written and computed
    thread    ThreadSanitizer: what two threads touch without agreeing on it

Every process that the tests start uses the sanitized extension, too. A report from any of them fails the run, whatever
the tests say.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}

# The ordinary extension is found by a hook that its installation left behind, before sys.path is looked at. Every
# process runs this file as it starts; without the hook it finds the softmrc next to it.
SITECUSTOMIZE = """
import sys
sys.meta_path[:] = [hook for hook in sys.meta_path if "editable" not in type(hook).__module__]
"""


def run(command: list[str | Path], **more: str) -> int:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, check=False).returncode


def make(source: Path, folder: Path, option: str, *targets: str) -> None:
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", option, f"-DPython_EXECUTABLE={sys.executable}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    configure = ["cmake", "-S", source, "-B", folder, *options, "-Wno-dev", "--log-level=WARNING"]
    if run(configure, PATH=path) or run(["cmake", "--build", folder, "--target", "all", *targets], PATH=path):
        sys.exit(f"{source} could not be built")


def build(kind: str, folder: Path) -> None:
    """The extensions, and next to them links to the Python sources."""
    make(ROOT, folder, f"-DSOFTMRC_SANITIZE={kind}", "test_programs")
    flags = "-fsanitize=thread" if kind == "thread" else "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    make(ROOT / "benchmarks", folder / "bench", f"-DCMAKE_CXX_FLAGS={flags} -fno-omit-frame-pointer")
    package = folder / "site" / "softmrc"
    shutil.rmtree(package.parent, ignore_errors=True)
    package.mkdir(parents=True)
    for source in (ROOT / "src" / "softmrc").iterdir():
        (package / source.name).symlink_to(source)
    bench = package.parent / "softmrc_bench"
    bench.mkdir()
    for source in (ROOT / "benchmarks" / "softmrc_bench").iterdir():
        (bench / source.name).symlink_to(source)
    for extension in (folder / "bench").glob("_native*.so"):
        shutil.copy(extension, bench)
    for extension in [*folder.glob("_core*.so"), *folder.glob("libnccl-net-*.so")]:
        shutil.copy(extension, package)
    (package.parent / "sitecustomize.py").write_text(SITECUSTOMIZE)


def library(name: str) -> str:
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment(kind: str, folder: Path) -> dict[str, str]:
    log = f"log_path={folder / 'report'}"
    return {
        "PYTHONPATH": f"{folder / 'site'}:{site.getsitepackages()[0]}",
        # The interpreter is not sanitized, so the runtime must be there before it.
        "LD_PRELOAD": f"{library(RUNTIMES[kind])} {library('libstdc++.so.6')}",
        # The interpreter keeps much until the end on purpose; the fuzzers look for leaks.
        "ASAN_OPTIONS": f"detect_leaks=0:{log}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{log}",
        # What the interpreter and NumPy touch is not seen, so their calls of memcpy and the like must not be, either;
        # their locks, the interpreter's own among them, still order what we do. A process may end with devices open,
        # whose threads are not joined.
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:report_thread_leaks=0:second_deadlock_stack=1:{log}",
        "SOFTMRC_SWARM_SEEDS": "200",
        "TEST_PROGRAMS": str(folder / "test_programs"),
        "SOFTMRC_SANITIZER": kind,  # for tests that look at what a process costs and says
    }


def main(kind: str, *tests: str) -> int:
    folder = ROOT / "build" / f"sanitize-{kind}"
    build(kind, folder)
    for old in folder.glob("report.*"):
        old.unlink()
    # ThreadSanitizer wants memory where it expects it.
    start = ["setarch", "-R"] if kind == "thread" else []
    failed = run([*start, sys.executable, "-m", "pytest", "-p", "no:xdist", *tests], **environment(kind, folder))
    reports = sorted(folder.glob("report.*"))
    for report in reports:
        print(f"== {report.name}", report.read_text(), sep="\n")
    print(f"{kind}: {len(reports)} processes with reports")
    return failed or bool(reports)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
