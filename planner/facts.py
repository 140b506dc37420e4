"""Where the facts in coverage/ lie and how they are read: strict YAML through the C loader.

A checkout keeps the folder beside the packages; a wheel carries it as `planner/_coverage`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from planner.errors import FuseplanError

_PACKAGED = Path(__file__).parent / "_coverage"
_CHECKOUT = Path(__file__).parent.parent / "coverage"

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadFacts(FuseplanError):
    """A YAML file that cannot be trusted: unreadable, a key twice, a field missing or unknown."""


class _StrictLoader(_BaseLoader):  # type: ignore[misc]
    """Refuses a mapping that holds a key twice; PyYAML would keep the last one silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise BadFacts(
                    f"{node.start_mark.name}, line {line}: the key '{key}' stands twice in one "
                    "mapping; keep one of them."
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def facts_folder() -> Path:
    """The folder that holds backends/, devices/ and schema/."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises `BadFacts` when the file cannot be read or parsed, or holds a key twice.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=_StrictLoader)
    except OSError as error:
        raise BadFacts(f"{path}: cannot be read ({error.strerror}); check the path.") from error
    except yaml.YAMLError as error:
        raise BadFacts(f"{path}: is not valid YAML: {error}") from error
