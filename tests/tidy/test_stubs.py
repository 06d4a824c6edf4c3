"""The core's types come out of its build, those of the benchmarks' extension are written by hand: none is missing."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import softmrc
import softmrc_bench
from softmrc import _core
from softmrc_bench import _native

HERE = Path(softmrc.__file__).parent
STUBS = {
    "_core/__init__": _core,
    "_core/wire": _core.wire,
    "_native": _native,
}


def declared(text: str) -> set[str]:
    """The names that a stub gives, submodules included."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ImportFrom) and node.module == "softmrc._core":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("name", STUBS)
def test_every_name_of_an_extension_has_a_type(name: str) -> None:
    home = HERE if name.startswith("_core") else Path(softmrc_bench.__file__).parent
    stub = home / f"{name}.pyi"
    if not stub.exists():
        pytest.skip("this build wrote no stubs: it is instrumented, or for another processor")
    module: ModuleType = STUBS[name]
    assert {one for one in dir(module) if not one.startswith("_")} == declared(stub.read_text())


def test_the_package_says_that_it_is_typed() -> None:
    assert (HERE / "py.typed").exists()
