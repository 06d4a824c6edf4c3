"""The tree's own rules: who may depend on whom, how long a file may be, and what is not left lying about.

A rule is one test over all files. It fails with every fault of the tree, so that one run is enough to fix them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = sorted(path for suffix in ("*.h", "*.cpp") for path in (ROOT / "core").rglob(suffix))
FUZZ = sorted((ROOT / "fuzz").glob("*.cpp")) + sorted((ROOT / "tests").rglob("*.cpp"))
PACKAGE = ROOT / "src" / "softmrc"
PYTHON = sorted((ROOT / "src").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEXTS = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md", ROOT / "CMakeLists.txt"]

ARCHITECTURE = ROOT / "docs" / "architecture.md"


def dependencies(text: str, title: str) -> dict[str, set[str]]:
    """The table under this title: each folder, and those that it may depend on besides itself."""
    rows = text.split(f"| {title} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {folder.strip("`"): {folder.strip("`"), *may.split()} for folder, _, may in cells}


MAY_INCLUDE = dependencies(ARCHITECTURE.read_text(), "`core/`")
MAY_IMPORT = dependencies(ARCHITECTURE.read_text(), "`src/softmrc/`")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
MAX_LINES = 700


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def check(paths: Iterable[Path], faults_of: Callable[[Path], list[str]], advice: str = "see below") -> None:
    """Fails with the faults of all these files, one a line."""
    faults = [f"{name(path)}: {fault}" for path in paths for fault in faults_of(path)]
    assert not faults, "\n".join([f"faults: {len(faults)}; {advice}", *faults])


def includes(text: str) -> list[str]:
    return [match[2] for match in INCLUDE.finditer(text)]


def test_the_tables_of_dependencies_are_read() -> None:
    table = "| `x/` | decides | may include |\n|---|---|---|\n| `a` | this | |\n| `b` | that | a |\n\nText"
    assert dependencies(table, "`x/`") == {"a": {"a"}, "b": {"a", "b"}}
    assert MAY_INCLUDE["base"] == {"base"} and MAY_IMPORT["wire"] == {"wire", "_support"}


def cycle(may: dict[str, set[str]]) -> list[str]:
    """Folders that depend on one another, or nothing."""
    try:
        list(TopologicalSorter({folder: others - {folder} for folder, others in may.items()}).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def folders_without_a_row(root: Path, may: dict[str, set[str]]) -> list[str]:
    there = {
        path.name for path in root.iterdir() if any(path.glob("*.*")) and path.name not in ("_core", "__pycache__")
    }
    return sorted(there ^ set(may))


def test_the_tables_name_every_folder_and_point_one_way() -> None:
    assert cycle({"a": {"a", "b"}, "b": {"c"}, "c": {"a"}}) and not cycle({"a": {"b"}, "b": {"b"}})
    assert not cycle(MAY_INCLUDE) and not cycle(MAY_IMPORT)
    assert all(may <= set(table) for table in (MAY_INCLUDE, MAY_IMPORT) for may in table.values())
    assert not folders_without_a_row(ROOT / "core", MAY_INCLUDE)
    assert not folders_without_a_row(PACKAGE, MAY_IMPORT)


def include_faults(folder: str, text: str) -> list[str]:
    """What a file of this folder includes although docs/architecture.md does not allow it."""
    if folder not in MAY_INCLUDE:
        return [f"docs/architecture.md has no row for core/{folder}"]
    faults = []
    for target in includes(text):
        first = target.split("/")[0]
        if first in MAY_INCLUDE and first not in MAY_INCLUDE[folder]:
            faults.append(f"{target}: {folder} may not depend on {first}")
        if first in ("nanobind", "Python.h", "pybind11") and folder != "python":
            faults.append(f"{target}: only core/python may know Python")
    return faults


def test_the_check_of_includes_can_fail() -> None:
    assert include_faults("wire", '#include "proto/endpoint.h"\n') == ["proto/endpoint.h: wire may not depend on proto"]
    assert include_faults("sim", '#include "udp/socket.h"\n') and include_faults("udp", '#include "sim/link.h"\n')
    assert include_faults("collectives", '#include "udp/lane.h"\n')
    assert include_faults("udp", '#include "collectives/plan.h"\n')
    assert include_faults("proto", "#include <nanobind/nanobind.h>\n")
    assert include_faults("elsewhere", "") == ["docs/architecture.md has no row for core/elsewhere"]
    assert not include_faults("python", '#include <nanobind/nanobind.h>\n#include "sim/link.h"\n')


def test_includes_point_one_way() -> None:
    check(CORE, lambda path: include_faults(path.relative_to(ROOT / "core").parts[0], text_of(path)))


def imports(tree: ast.AST) -> list[str]:
    """Every module that is imported, wherever in the file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def import_faults(parts: tuple[str, ...], tree: ast.AST) -> list[str]:
    """What a module at src/softmrc/<parts> imports although docs/architecture.md does not allow it."""
    faults, here = set(), parts[0]
    for module in imports(tree):
        package, *rest = module.split(".")
        if package == "torch" and here not in ("torch", "demo"):
            faults.add(f"{module}: only softmrc.torch and softmrc.demo may know torch")
        if package == "softmrc_bench" and here != "cli":
            faults.add(f"{module}: only the command itself runs benchmarks")
        if package == "softmrc" and rest and rest[0] in MAY_IMPORT and here in MAY_IMPORT:
            if rest[0] not in MAY_IMPORT[here]:
                faults.add(f"{module}: {here} may not depend on {rest[0]}")
        elif package == "softmrc" and rest[:1] == ["cli"] and here != "__main__.py":
            faults.add(f"{module}: nothing but the command itself imports softmrc.cli")
    return sorted(faults)


def test_the_check_of_imports_can_fail() -> None:
    assert import_faults(("wire", "x.py"), ast.parse("from softmrc import cli"))
    assert import_faults(("wire", "x.py"), ast.parse("def f():\n    import torch.nn"))
    assert import_faults(("sim", "x.py"), ast.parse("from softmrc.torch import backend"))
    assert import_faults(("device", "x.py"), ast.parse("from softmrc_bench import _native"))
    assert import_faults(("device", "x.py"), ast.parse("import softmrc.connection.offer"))
    assert import_faults(("pair.py",), ast.parse("import softmrc.cli.app"))
    assert not import_faults(("cli", "x.py"), ast.parse("from softmrc_bench import engine"))
    assert not import_faults(("torch", "x.py"), ast.parse("import torch"))
    assert not import_faults(("cli", "x.py"), ast.parse("from softmrc.cli import app"))
    assert not import_faults(("__main__.py",), ast.parse("from softmrc.cli import main"))
    assert not import_faults(("sim", "x.py"), ast.parse("from softmrc import client"))


def test_imports_point_one_way() -> None:
    check(PYTHON, lambda path: import_faults(path.relative_to(PACKAGE).parts, ast.parse(text_of(path))))


def terminal_faults(module: str, text: str) -> list[str]:
    """Calls that would read square brackets in foreign text as markup."""
    if module == "cli/terminal.py":
        return []
    found = re.findall(r"\bConsole\(|\brich\.print\b|from_markup\(|\bLive\((?!console=)", text)
    return found + re.findall(r"TextColumn\((?!.*markup=False)", text)


def test_the_check_of_terminals_can_fail() -> None:
    assert terminal_faults("cli/x.py", "Console().print(name)") == ["Console("]
    assert terminal_faults("cli/x.py", "Live(auto_refresh=False)") and terminal_faults("x.py", "TextColumn('{x}')")
    assert not terminal_faults("cli/x.py", "terminal().print(name)\ndef f(console: Console): ...\nLive(console=c)")


def test_only_one_file_makes_terminals() -> None:
    check(
        PYTHON,
        lambda path: terminal_faults(path.relative_to(PACKAGE).as_posix(), text_of(path)),
        "softmrc.cli.terminal makes one that reads no markup",
    )


def test_the_gil_is_let_go_of_in_one_way() -> None:
    check(
        [path for path in CORE if path.parent.name == "python"],
        lambda path: re.findall("gil_scoped_release", text_of(path)),
        "WithoutGil (bind.h) survives the end of Python",
    )


# A heuristic, not a compiler: at namespace scope our code is not indented, and what is not const there is one of a few
# shapes. Inside functions only `static` can outlive a call.
CONSTANT = re.compile(r"\b(const|constexpr|constinit|consteval|using|typedef)\b")
LOCAL_STATIC = re.compile(r"^\s+(static|thread_local)\b(?!_)")
NAMESPACE_VARIABLE = re.compile(
    r"^(static |inline |thread_local |extern )*"  # how it is stored
    r"[A-Za-z_][\w:<>,*& ]*[ *&>]\w+(\[\w*\])?\s*"  # its type and name
    r"(=[^=].*|\{.*\}|);"  # its first value, if any
)
NOT_VARIABLE = re.compile(
    r"^(namespace|using|typedef|template|struct|class|enum|union|return|friend|#|\}|static_assert)"
)


def mutable_globals(text: str) -> list[str]:
    """Lines that look like state that lives as long as the process."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0].rstrip()
        if not code or CONSTANT.search(code):
            continue
        is_function = "(" in code.split("=")[0].split("{")[0]
        local = LOCAL_STATIC.match(code) and not is_function
        at_namespace = NAMESPACE_VARIABLE.match(code) and not NOT_VARIABLE.match(code) and not is_function
        if local or at_namespace:
            found.append(f"{number}: {line.strip()}")
    return found


STATE = (
    "int counter = 0;",
    "static int counter;",
    "std::vector<int> seen;",
    "inline std::map<int, int> table{};",
    "thread_local int depth = 0;",
    "void f() {\n  static int calls = 0;\n}",
)
NO_STATE = (
    "constexpr int size = 4;",
    "const Table table = make();",
    "static int f(int x);",
    "struct A {\n  static constexpr int n = 1;\n  int x = 0;\n  static A parse(const char* p) {\n  }\n};",
    "using Bytes = std::span<int>;",
    "std::string name_of(Opcode opcode);",
    "enum class A : int { a, b };",
    "  static_assert(sizeof(int) == 4);",
)


def test_the_check_of_globals_can_fail_and_lets_the_rest_pass() -> None:
    assert [code for code in STATE if not mutable_globals(code)] == []
    assert [code for code in NO_STATE if mutable_globals(code)] == []


def test_core_has_no_mutable_globals() -> None:
    check(CORE, lambda path: mutable_globals(text_of(path)))


# Names that only compilers for x86 know, and conditions under which they may stand.
OF_X86 = re.compile(r"__builtin_ia32|__builtin_cpu_supports|\b_mm\d*_|\b__m\d+|immintrin\.h|cpuid\.h")
IF_X86 = re.compile(r"__x86_64__|__AVX2__|__F16C__")


def unguarded_x86(text: str) -> list[str]:
    """Lines that would not compile for another processor."""
    found, guards = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if line.startswith("#if"):
            guards.append(IF_X86.search(line) is not None and "||" not in line)
        elif line.startswith(("#elif", "#else")):
            guards[-1] = IF_X86.search(line) is not None
        elif line.startswith("#endif"):
            guards.pop()
        elif words and not words[0].startswith("//") and OF_X86.search(line) and not any(guards):
            found.append(f"{number}: {line.strip()}")
    return found


def test_the_check_of_x86_can_fail() -> None:
    assert unguarded_x86("#include <immintrin.h>") and unguarded_x86("  __builtin_ia32_pause();")
    assert unguarded_x86("#if defined(__x86_64__)\n#else\n__m128i x;\n#endif")
    assert not unguarded_x86("#if defined(__x86_64__)\n#if 1\n__m128i x;\n#endif\n#endif\nint m1;")


def test_core_compiles_for_other_processors() -> None:
    check(CORE, lambda path: unguarded_x86(text_of(path)))


UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def file_faults(suffix: str, text: str) -> list[str]:
    """What is wrong with the form of a file of this kind."""
    lines, faults = text.splitlines(), []
    if suffix == ".h" and "#pragma once" not in text:
        faults.append("no #pragma once")
    if suffix == ".h" and not text.startswith("//"):
        faults.append("does not open with a sentence about itself")
    if suffix in (".h", ".cpp", ".py") and len(lines) > MAX_LINES:
        faults.append(f"{len(lines)} lines; split it, {MAX_LINES} is the most")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            faults.append(f"{number}: trailing whitespace")
        if "\t" in line:
            faults.append(f"{number}: a tab")
        if unfinished := UNFINISHED.search(line):
            faults.append(f"{number}: {unfinished[0]}; finish it or drop it")
    if text and not text.endswith("\n"):
        faults.append("does not end with a newline")
    return faults


def test_the_check_of_files_can_fail() -> None:
    for suffix, first in ((".h", "// F.\n#pragma once\n"), (".cpp", "x\nx\n"), (".py", "x\nx\n")):
        assert not file_faults(suffix, first + "x\n" * (MAX_LINES - 2))
        (fault,) = file_faults(suffix, first + "x\n" * (MAX_LINES - 1))
        assert fault == f"{MAX_LINES + 1} lines; split it, {MAX_LINES} is the most"
    assert not file_faults(".md", "x\n" * (MAX_LINES + 1)) and not file_faults(".py", "")
    unfinished = "TO" + "DO"  # in two parts, or this file were one of them
    assert file_faults(".md", "x \n\ty\nz: " + unfinished) == [
        "1: trailing whitespace",
        "2: a tab",
        f"3: {unfinished}; finish it or drop it",
        "does not end with a newline",
    ]
    assert file_faults(".h", "int f();\n") == ["no #pragma once", "does not open with a sentence about itself"]


def test_files_are_short_and_clean_and_headers_guarded() -> None:
    check(CORE + FUZZ + PYTHON + BENCHMARKS + TESTS + TEXTS, lambda path: file_faults(path.suffix, text_of(path)))


def test_files_are_found_at_all() -> None:
    assert len(CORE) > 20 and len(PYTHON) > 10, "the globs above found too little; has a folder moved?"
    assert min(map(len, (FUZZ, TESTS, TEXTS))) > 5
