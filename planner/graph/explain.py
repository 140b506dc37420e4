"""Puts torch.export's errors into words: what went wrong, where in the user's code, what to do."""

from __future__ import annotations

import re

from planner.graph.source import printable, user_frame


def export_failure(model: str, error: Exception) -> str:
    """The message for a model of class `model` that torch.export refused with `error`."""
    frame = user_frame(error.__traceback__) or _frame_in_message(str(error))
    where = f" at {frame}" if frame else ""
    return (
        f"torch.export cannot take {model} as one program: {_explain(error)}{where}. "
        f"{_advice(error)}"
    )


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its class where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _explain(error: Exception) -> str:
    if "DataDependent" in type(error).__name__:
        return "a Python branch or size depends on the value of a tensor"
    reasons = re.findall(r"^ *- (.*?)\.?$", str(error), re.MULTILINE)
    first = reasons[0] if _is_about_sizes(error) and reasons else first_line(error)
    return f"{type(error).__name__}: {first}"


def _advice(error: Exception) -> str:
    if _is_about_sizes(error):
        return (
            "The model allows one size there, or a narrower range: leave that size out of "
            "dynamic_shapes, or state the range that it allows."
        )
    return (
        "Replace what depends on a tensor's value by tensor operations (torch.where, masks), or "
        "export the parts around it."
    )


def _is_about_sizes(error: Exception) -> bool:
    """torch says so at the head of a list of sizes that cannot stay open."""
    return str(error).startswith(("Constraints violated", "Found the following conflicts"))


def _frame_in_message(message: str) -> str | None:
    """The last `file, line` that the error text itself names outside of torch."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', message)
    own = [f"{printable(file)}:{line}" for file, line in frames if "/torch/" not in file]
    return own[-1] if own else None
