"""The wheel and the source archive carry the facts, and an installed wheel finds them."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT_PARTS = ("planner", "fusion_kernels", "coverage")


def _build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = folder.iterdir()
    return archive


def _files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project: a build never meets files that another test is writing."""
    copy = tmp_path_factory.mktemp("project")
    for part in PROJECT_PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(project, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content as site-packages would."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_wheel_carries_every_fact(installed: Path) -> None:
    facts = _files(ROOT / "coverage")
    assert facts
    assert _files(installed / "planner" / "_coverage") == facts


def test_wheel_carries_every_module(installed: Path) -> None:
    for package in ("planner", "fusion_kernels"):
        packed = {name for name in _files(installed / package) if not name.startswith("_coverage")}
        assert packed == _files(ROOT / package)


def test_wheel_has_no_other_top_level_folder(installed: Path) -> None:
    """A top-level `coverage` would overwrite coverage.py in site-packages."""
    folders = {path.name for path in installed.iterdir()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {
        "planner",
        "fusion_kernels",
    }


def test_wheel_names_its_license_and_command(installed: Path) -> None:
    (info,) = installed.glob("fuseplan-*.dist-info")
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert "fuseplan = planner.__main__:main" in (info / "entry_points.txt").read_text()


def test_installed_wheel_finds_its_facts(installed: Path, tmp_path: Path) -> None:
    program = "import planner.facts as f; print(f.__file__); print(f.facts_folder())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    module, folder = found.stdout.splitlines()
    assert Path(module) == installed / "planner" / "facts.py"
    assert Path(folder) == installed / "planner" / "_coverage"


def test_source_archive_builds_the_same_wheel(project: Path, wheel: Path, tmp_path: Path) -> None:
    archive = _build(project, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    again = _build(source, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
