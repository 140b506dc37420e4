"""The layout rules that keep the project readable: who imports whom, and what a file may hold."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGES = ("planner", "fusion_kernels")
MAY_IMPORT_TRITON = {
    "fusion_kernels/load.py",
    "fusion_kernels/interpreter.py",
    "fusion_kernels/compile.py",
    "fusion_kernels/side_by_side.py",
}
MAY_READ_A_CLOCK = {"planner/timing.py"}
MAY_PRINT = ("planner/cli/", "planner/__main__.py", "planner/support/refresh.py")
FILE_LINES = 400
FUNCTION_LINES = 80


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _files(*folders: str) -> list[Path]:
    """The Python files under `folders`, those that a golden test compares with left out."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "golden" not in path.parts)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path) -> Iterator[str]:
    """Every module the file imports, at its top or in a function, by statement or by name."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _importers(package: str, *folders: str) -> set[str]:
    return {
        _name(path)
        for path in _files(*folders)
        if any(module.split(".")[0] == package for module in _imports(path))
    }


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_never_import_the_planner() -> None:
    assert _importers("planner", "fusion_kernels") == set()


def test_only_loading_and_compiling_import_triton() -> None:
    assert _importers("triton", *PACKAGES) <= MAY_IMPORT_TRITON


def test_importing_any_planner_module_leaves_triton_out() -> None:
    modules = [
        _name(path).removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        for path in _files("planner")
        if path.name != "__main__.py"
    ]
    program = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    assert _run(program + "print('triton' in sys.modules)") == "False\n"


def test_importing_planner_leaves_torch_out() -> None:
    assert _run("import planner, sys; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["fuse", "--help"], ["audit", "--help"]])
def test_help_leaves_torch_out(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['fuseplan', *{arguments!r}]\n"
        "from planner.__main__ import main\n"
        "try: status = main()\n"
        "except SystemExit as stop: status = stop.code\n"
        "print(status or 0, 'torch' in sys.modules)"
    )
    assert _run(program).splitlines()[-1] == "0 False"


def test_only_timing_reads_a_clock() -> None:
    assert _importers("time", *PACKAGES) <= MAY_READ_A_CLOCK


def test_only_the_command_line_prints() -> None:
    printing = {
        _name(path)
        for path in _files(*PACKAGES)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert {name for name in printing if not name.startswith(MAY_PRINT)} == set()


def test_coverage_holds_data_only() -> None:
    """With Python in it the folder would shadow coverage.py."""
    assert _files("coverage") == []


@pytest.mark.parametrize("path", _files(*PACKAGES, "tests", "examples"), ids=_name)
def test_first_statement_tells_the_file_s_responsibility(path: Path) -> None:
    tree = _tree(path)
    if tree.body or path.name != "__init__.py":
        assert ast.get_docstring(tree)


@pytest.mark.parametrize("path", _files(*PACKAGES), ids=_name)
def test_files_and_functions_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES
    long = [
        f"{node.name}, line {node.lineno}"
        for node in ast.walk(_tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES
    ]
    assert long == []


def test_the_wheel_lists_both_packages_and_the_facts() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        wheel = tomllib.load(stream)["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == list(PACKAGES)
    assert wheel["force-include"] == {"coverage": "planner/_coverage"}
