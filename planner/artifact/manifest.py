"""The manifest of an artifact: what it holds, and a SHA-256 of every part and of itself.

The hashes find corruption and mix-ups. They are no signature: whoever forges a part can forge its
hash as well, and a loaded artifact runs code. Load only what comes from where you trust.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from planner.artifact.errors import BrokenArtifact, OtherVersion

FORMAT = "fuseplan artifact"
FORMAT_VERSION = 1
EXTRA = "extra/"
"""The folder that torch puts extra files in; the names below are relative to it."""
MANIFEST = "fuseplan/manifest.json"
REPORT = "fuseplan/report.json"
KERNELS = "fuseplan/kernels/"


@dataclass(frozen=True, slots=True)
class Part:
    """One member of the file: its size and the SHA-256 of its content, in hexadecimal."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter or buffer by its full name. `same_as` is the first name of a tied one. A buffer
    that is not persistent stands in no state_dict.
    """

    name: str
    parameter: bool
    persistent: bool
    same_as: str | None


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the original forward. `default` is its default where that is a plain value
    (`plain`); `required` says that it has none.
    """

    name: str
    kind: str
    required: bool
    plain: bool
    default: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything the loader needs to know before it touches the program.

    `program` is "fused" or "unfused": what runs where its
    guards hold. `kernels` names the operators in it, `reuse` for each of their calls in the
    graph's order the input that is overwritten, or None. `shared` are constants that the second
    program has from the first. `autocast` is the dtype of the autocast that was on around the
    capture, and `autocast_regions` tells that the forward enters or leaves autocast itself.
    """

    fuseplan: str
    torch: str
    program: str
    device: str
    dtypes: tuple[str, ...]
    kernels: tuple[str, ...]
    reuse: tuple[int | None, ...]
    shared: tuple[str, ...]
    classes: tuple[str, ...]
    arguments: tuple[Argument, ...] | None
    weights: tuple[Weight, ...]
    parts: dict[str, Part]
    autocast: str | None = None
    autocast_regions: bool = False


def to_text(manifest: Manifest) -> str:
    """The manifest as JSON with its own digest."""
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(manifest)}
    return json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n"


def from_text(text: bytes, name: str) -> Manifest:
    """The manifest that `text` holds; `name` is the file's, for messages.

    Raises `OtherVersion` for another format version, `BrokenArtifact` when the text is not as it
    was written.
    """
    try:
        content = json.loads(text)
        digest = content.pop("digest")
        version = content["format_version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenArtifact(_changed(name)) from error
    if content.get("format") != FORMAT:
        raise BrokenArtifact(_changed(name))
    if version != FORMAT_VERSION:
        raise OtherVersion(
            f"{name}: has artifact format {version!r}, this fuseplan reads {FORMAT_VERSION}. Load "
            f"it with the fuseplan that saved it ({content.get('fuseplan')}), or fuse and save "
            "again."
        )
    if digest != _digest(content):
        raise BrokenArtifact(_changed(name))
    try:
        return _typed({k: v for k, v in content.items() if not k.startswith("format")})
    except (TypeError, KeyError, AttributeError) as error:
        raise OtherVersion(f"{name}: its manifest is not as this fuseplan writes one.") from error


def _typed(content: dict[str, Any]) -> Manifest:
    arguments = content["arguments"]
    content["arguments"] = arguments and tuple(Argument(**row) for row in arguments)
    content["weights"] = tuple(Weight(**row) for row in content["weights"])
    content["parts"] = {name: Part(**row) for name, row in content["parts"].items()}
    for name in ("dtypes", "kernels", "reuse", "shared", "classes"):
        content[name] = tuple(content[name])
    return Manifest(**content)


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _changed(name: str) -> str:
    return f"{name}: its manifest has been changed or damaged. Copy or save the artifact again."
