"""Names in tables, and what is said of those that are not there."""

import pytest

from specjax.names import lookup


def test_lookup_suggests_the_nearest_name():
    assert lookup("model", {"model": 1}, "drafter") == 1
    with pytest.raises(ValueError, match="no drafter is named 'modle', did you mean 'model'"):
        lookup("modle", {"model": 1, "plain": 2}, "drafter")
    with pytest.raises(ValueError, match=r"known: model, plain") as caught:
        lookup("zzz", {"model": 1, "plain": 2}, "drafter")
    assert "did you mean" not in str(caught.value)
