"""Properties as functions of a seeded generator: hypothesis drives the seed where it is installed."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

import torch

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError:  # a GPU machine without it: the same property, a loop of seeds
    HAVE_HYPOTHESIS = False
else:
    HAVE_HYPOTHESIS = True

Test = Callable[..., None]


def for_seeds(examples: int) -> Callable[[Test], Test]:
    """Run a test with `examples` generators: it takes ``rng``, a random.Random, beside its fixtures."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def with_seed(*args: Any, seed: int, **kwargs: Any) -> None:
            test(*args, rng=random.Random(seed), **kwargs)

        signature = inspect.signature(test)
        parameters = [p for name, p in signature.parameters.items() if name != "rng"]
        seed_parameter = inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY)
        with_seed.__signature__ = signature.replace(parameters=[*parameters, seed_parameter])  # type: ignore[attr-defined]
        if HAVE_HYPOTHESIS:
            return settings(
                max_examples=examples,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
            )(given(seed=st.integers(0, 2**32 - 1))(with_seed))

        @functools.wraps(test)
        def loop(*args: Any, **kwargs: Any) -> None:
            for seed in range(examples):
                with_seed(*args, seed=seed, **kwargs)

        loop.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return loop

    return decorate


def torch_generator(rng: random.Random) -> torch.Generator:
    """A torch generator that follows from `rng`."""
    return torch.Generator().manual_seed(rng.getrandbits(63))
