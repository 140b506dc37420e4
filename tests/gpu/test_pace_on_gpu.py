"""Who sets the pace, and times with and without the host's part, on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from planner.timing import interleaved, pace_of

pytestmark = pytest.mark.gpu


def test_many_small_kernels_wait_for_the_host_and_a_long_one_does_not() -> None:
    small, large = torch.ones(8, device="cuda"), torch.ones(1 << 28, device="cuda")
    assert pace_of(lambda: [small + 1 for _ in range(50)], "cuda") == "host"
    assert pace_of(lambda: [large + 1 for _ in range(4)], "cuda") == "device"


def test_the_device_s_pace_leaves_out_the_host_s_part() -> None:
    small = torch.ones(8, device="cuda")

    def busy() -> None:
        sum(range(20_000))
        small.add(1)

    with_host = interleaved({"a": busy}, "cuda", rounds=10)["a"]
    alone = interleaved({"a": busy}, "cuda", rounds=10, pace="device")["a"]
    assert alone.median_us < with_host.median_us / 2


def test_a_call_that_waits_for_the_device_is_timed_as_it_is() -> None:
    """No CUDA graph holds it."""
    large = torch.ones(1 << 20, device="cuda")
    (timing,) = interleaved(
        {"a": lambda: large.sum().item()}, "cuda", rounds=5, pace="device"
    ).values()
    assert len(timing.samples_us) == 5
    assert timing.median_us > 0
    assert torch.randn(8, device="cuda").isfinite().all()  # a broken capture would raise here
