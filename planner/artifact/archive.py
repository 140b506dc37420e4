"""The .pt2 file as named parts: hashed after writing, checked before anything in it is used."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from planner.artifact.errors import BrokenArtifact, NotAnArtifact
from planner.artifact.manifest import EXTRA, MANIFEST, Manifest, Part, from_text, to_text

_MANIFEST = EXTRA + MANIFEST
_CHUNK_BYTES = 1 << 20
_ZIP_START = b"PK\x03\x04"
_AGAIN = "Copy or save the artifact again."


class Archive:
    """An artifact whose every part is what its manifest says. `read` gives one of them."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Check the whole of `stream`; `name` is what messages call it.

        Raises `NotAnArtifact`, `BrokenArtifact` or `OtherVersion`.
        """
        self._name = name
        self._zip = _opened(stream, name)
        names = self._zip.namelist()
        if not names:
            raise NotAnArtifact(f"{name}: is empty.")
        self._root = names[0].split("/", 1)[0] + "/"
        if self._root + _MANIFEST not in names:
            raise NotAnArtifact(
                f"{name}: was not saved by fuseplan. planner.load reads what fused.save(path) "
                "writes; torch.export.load reads other .pt2 files."
            )
        self.manifest = from_text(self.read(_MANIFEST), name)
        self._check_names(names)
        for part, stated in self.manifest.parts.items():
            if self._found(part) != stated:
                raise BrokenArtifact(f"{name}: its part '{part}' has been changed. {_AGAIN}")

    def read(self, part: str) -> bytes:
        """The content of one part. Raises `BrokenArtifact` when it is not whole."""
        try:
            return self._zip.read(self._root + part)
        except _BROKEN as error:
            raise BrokenArtifact(f"{self._name}: its part '{part}' is damaged. {_AGAIN}") from error

    def read_extra(self, name: str) -> str:
        """The text of one extra file. Raises `BrokenArtifact` when there is none."""
        if EXTRA + name not in self.manifest.parts:
            raise BrokenArtifact(f"{self._name}: its part '{EXTRA}{name}' is missing. {_AGAIN}")
        return self.read(EXTRA + name).decode()

    def _check_names(self, names: list[str]) -> None:
        """Exactly the parts of the manifest, each once: readers differ on which of two equal names
        they take.
        """
        found = Counter(name.removeprefix(self._root) for name in names)
        for part in self.manifest.parts:
            if part not in found:
                raise BrokenArtifact(f"{self._name}: its part '{part}' is missing. {_AGAIN}")
        for part, count in found.items():
            if count > 1 or not (part in self.manifest.parts or part == _MANIFEST):
                raise BrokenArtifact(
                    f"{self._name}: holds a part '{part}' that its manifest does not list. {_AGAIN}"
                )

    def _found(self, part: str) -> Part:
        try:
            return _part(self._zip, self._root + part)
        except _BROKEN as error:
            raise BrokenArtifact(f"{self._name}: its part '{part}' is damaged. {_AGAIN}") from error


def parts_of(path: Path) -> dict[str, Part]:
    """Every part of a .pt2 file that torch wrote, with its hash."""
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: _part(archive, name) for name in archive.namelist()}


def add_manifest(path: Path, manifest: Manifest) -> None:
    """Put the manifest into the file, as its last part."""
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].split("/", 1)[0]
        archive.writestr(zipfile.ZipInfo(f"{root}/{_MANIFEST}"), to_text(manifest))


# What zipfile raises for bytes that are no archive, or not the one that was written.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    NotImplementedError,
    RuntimeError,
)


def _opened(stream: BinaryIO, name: str) -> zipfile.ZipFile:
    start = stream.read(len(_ZIP_START))
    stream.seek(0)
    try:
        return zipfile.ZipFile(stream)
    except _BROKEN as error:
        if start == _ZIP_START:
            raise BrokenArtifact(f"{name}: has been cut off or damaged. {_AGAIN}") from error
        raise NotAnArtifact(f"{name}: is not a fuseplan artifact (not a .pt2 file).") from error


def _part(archive: zipfile.ZipFile, name: str) -> Part:
    digest, size_bytes = hashlib.sha256(), 0
    with archive.open(name) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return Part(size_bytes, digest.hexdigest())
