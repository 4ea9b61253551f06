"""Models on which nothing is decoded: what they would do is simulated, or recorded."""

import pytest

from specjax.model import Model
from specjax.models import opt
from tests.cli import toys


@pytest.fixture(scope="session")
def models() -> list[Model]:
    config = opt.OPTConfig(vocab_size=257, width=16, embed_width=16, layers=2, heads=2, mlp_width=32, max_positions=128)
    return [Model(name, opt.FAMILY, config, toys.FMT, toys.params(0, config)) for name in ("big", "hub/small")]
