"""Keeps torch.export's own output out of the user's terminal: what matters goes into our
errors.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

# Warns of symbols that it finds no user code for, beside the error that says where the code is.
_SYMBOLS = logging.getLogger("torch.fx.experimental.symbolic_shapes")


@contextmanager
def quiet_export() -> Iterator[None]:
    """For the duration of the block: no partial graph on stderr, no warnings of torch's own
    workings.
    """
    level = _SYMBOLS.level
    _SYMBOLS.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own pytree
            # An LSTM's list of weights, a cache that forward keeps: both on the copy that is
            # exported, and the values of the result are compared afterwards.
            warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export")
            yield
    finally:
        _SYMBOLS.setLevel(level)
