"""The tree's own rules: who may depend on whom, how long a file may be, and what is not left lying about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = sorted(path for suffix in ("*.h", "*.cpp") for path in (ROOT / "core").rglob(suffix))
FUZZ = sorted((ROOT / "fuzz").glob("*.cpp")) + sorted((ROOT / "tests").rglob("*.cpp"))
PYTHON = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEXTS = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md", ROOT / "CMakeLists.txt"]

# base <- wire <- {proto, seal} <- {udp <- face <- nccl, collectives <- sim} <- bind: each room, and the rooms whose
# headers it may include.
MAY_INCLUDE = {
    "base": {"base"},
    "wire": {"base", "wire"},
    "proto": {"base", "wire", "proto"},
    "sim": {"base", "wire", "proto", "collectives", "sim"},
    "seal": {"base", "wire", "seal"},
    "udp": {"base", "wire", "proto", "seal", "udp"},
    "collectives": {"base", "proto", "collectives"},
    "face": {"base", "wire", "proto", "seal", "udp", "face"},
    "nccl": {"base", "wire", "proto", "seal", "udp", "face", "nccl"},
    "yardstick": {"base", "proto", "udp", "yardstick"},
    "bind": {"base", "wire", "proto", "seal", "sim", "udp", "collectives", "face", "yardstick", "bind"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
MAX_LINES = 700


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def includes(text: str) -> list[str]:
    return [match[2] for match in INCLUDE.finditer(text)]


def include_faults(room: str, text: str) -> list[str]:
    """What a file of this room includes although it may not."""
    faults = []
    for target in includes(text):
        first = target.split("/")[0]
        if first in MAY_INCLUDE and first not in MAY_INCLUDE[room]:
            faults.append(f"{target}: {room} may not depend on {first}")
        if first in ("nanobind", "Python.h", "pybind11") and room != "bind":
            faults.append(f"{target}: only bind may know Python")
    return faults


def test_the_check_of_includes_can_fail() -> None:
    assert include_faults("wire", '#include "proto/endpoint.h"\n') == ["proto/endpoint.h: wire may not depend on proto"]
    assert include_faults("sim", '#include "udp/socket.h"\n') and include_faults("udp", '#include "sim/link.h"\n')
    assert include_faults("collectives", '#include "udp/lane.h"\n')
    assert include_faults("udp", '#include "collectives/plan.h"\n')
    assert include_faults("proto", "#include <nanobind/nanobind.h>\n")
    assert not include_faults("bind", '#include <nanobind/nanobind.h>\n#include "sim/link.h"\n')


@pytest.mark.parametrize("path", CORE, ids=name)
def test_includes_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "core").parts[0]
    assert room in MAY_INCLUDE, f"{name(path)}: {room} is no room of core/"
    faults = include_faults(room, path.read_text())
    assert not faults, f"{name(path)} includes {'; '.join(faults)}"


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
    """What a module at src/softmrc/<parts> imports although it may not."""
    faults = []
    for module in imports(tree):
        if module.split(".")[0] == "torch" and parts[:1] != ("torch",):
            faults.append(f"{module}: only softmrc.torch may know torch")
        if (module + ".").startswith("softmrc.cli.") and parts[:1] not in {("cli",), ("__main__.py",)}:
            faults.append(f"{module}: nothing but the command itself imports softmrc.cli")
        if (module + ".").startswith("softmrc.torch.") and parts[:1] not in {("torch",), ("cli",)}:
            faults.append(f"{module}: importing it would import torch")
        if (module + ".").startswith("softmrc._yardstick.") and parts[:1] != ("bench",):
            faults.append(f"{module}: only softmrc.bench may measure with it")
    return faults


def test_the_check_of_imports_can_fail() -> None:
    assert import_faults(("wire", "x.py"), ast.parse("from softmrc import cli"))
    assert import_faults(("wire", "x.py"), ast.parse("def f():\n    import torch.nn"))
    assert import_faults(("sim", "x.py"), ast.parse("from softmrc.torch import backend"))
    assert import_faults(("verbs", "x.py"), ast.parse("from softmrc import _core, _yardstick"))
    assert not import_faults(("bench", "x.py"), ast.parse("from softmrc import _yardstick"))
    assert not import_faults(("torch", "x.py"), ast.parse("import torch"))
    assert not import_faults(("cli", "x.py"), ast.parse("from softmrc.cli import app"))
    assert not import_faults(("__main__.py",), ast.parse("from softmrc.cli import main"))
    assert not import_faults(("sim", "x.py"), ast.parse("from softmrc import client"))


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_imports_point_one_way(path: Path) -> None:
    faults = import_faults(path.relative_to(ROOT / "src" / "softmrc").parts, ast.parse(path.read_text()))
    assert not faults, f"{name(path)} imports {'; '.join(faults)}"


def terminal_faults(module: str, text: str) -> list[str]:
    """Ways to have a stranger's square brackets read as markup."""
    if module == "cli/terminal.py":
        return []
    found = re.findall(r"\bConsole\(|\brich\.print\b|from_markup\(|\bLive\((?!console=)", text)
    return found + re.findall(r"TextColumn\((?!.*markup=False)", text)


def test_the_check_of_terminals_can_fail() -> None:
    assert terminal_faults("cli/x.py", "Console().print(name)") == ["Console("]
    assert terminal_faults("cli/x.py", "Live(auto_refresh=False)") and terminal_faults("x.py", "TextColumn('{x}')")
    assert not terminal_faults("cli/x.py", "terminal().print(name)\ndef f(console: Console): ...\nLive(console=c)")


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_only_one_file_makes_terminals(path: Path) -> None:
    faults = terminal_faults("/".join(path.relative_to(ROOT / "src" / "softmrc").parts), path.read_text())
    assert not faults, f"{name(path)}: {faults}; softmrc.cli.terminal makes one that reads no markup"


@pytest.mark.parametrize("path", [path for path in CORE if path.parent.name == "bind"], ids=name)
def test_the_gil_is_let_go_of_in_one_way(path: Path) -> None:
    assert "gil_scoped_release" not in path.read_text(), f"{name(path)}: WithoutGil (bind.h) survives the end of Python"


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


@pytest.mark.parametrize(
    "code",
    [
        "int counter = 0;",
        "static int counter;",
        "std::vector<int> seen;",
        "inline std::map<int, int> table{};",
        "thread_local int depth = 0;",
        "void f() {\n  static int calls = 0;\n}",
    ],
)
def test_the_check_of_globals_can_fail(code: str) -> None:
    assert mutable_globals(code)


@pytest.mark.parametrize(
    "code",
    [
        "constexpr int size = 4;",
        "const Table table = make();",
        "static int f(int x);",
        "struct A {\n  static constexpr int n = 1;\n  int x = 0;\n  static A parse(const char* p) {\n  }\n};",
        "using Bytes = std::span<int>;",
        "std::string name_of(Opcode opcode);",
        "enum class A : int { a, b };",
        "  static_assert(sizeof(int) == 4);",
    ],
)
def test_the_check_of_globals_lets_the_rest_pass(code: str) -> None:
    assert not mutable_globals(code)


@pytest.mark.parametrize("path", CORE, ids=name)
def test_core_has_no_mutable_globals(path: Path) -> None:
    found = mutable_globals(path.read_text())
    assert not found, f"{name(path)}:{'; '.join(found)}"


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


@pytest.mark.parametrize("path", CORE, ids=name)
def test_core_compiles_for_other_processors(path: Path) -> None:
    found = unguarded_x86(path.read_text())
    assert not found, f"{name(path)}:{'; '.join(found)}"


@pytest.mark.parametrize("path", CORE + FUZZ + PYTHON + TESTS + TEXTS, ids=name)
def test_files_are_short_and_clean(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    limit = MAX_LINES if path.suffix in (".h", ".cpp", ".py") else None
    assert limit is None or len(lines) <= limit, f"{name(path)} has {len(lines)} lines; split it, {limit} is the most"
    for number, line in enumerate(lines, 1):
        assert line == line.rstrip(), f"{name(path)}:{number}: trailing whitespace"
        assert "\t" not in line, f"{name(path)}:{number}: a tab"
        unfinished = re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b", line)
        assert not unfinished, f"{name(path)}:{number}: {unfinished and unfinished[0]}; finish it or drop it"
    assert text == "" or text.endswith("\n"), f"{name(path)} does not end with a newline"


@pytest.mark.parametrize("path", CORE, ids=name)
def test_headers_are_guarded_and_say_what_they_decide(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".h":
        assert "#pragma once" in text, f"{name(path)} has no #pragma once"
        assert text.startswith("//"), f"{name(path)} does not open with a sentence about itself"


def test_the_rooms_are_found_at_all() -> None:
    assert len(CORE) > 20 and len(PYTHON) > 10, "the globs above found too little; has a folder moved?"
