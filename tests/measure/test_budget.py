"""How many tokens a budget of MACs pays for."""

import pytest
from families import backbone

import leanformer as lf


def test_keep_rates_are_searched_among_those_that_the_method_takes():
    model = lf.apply(backbone("vit"), lf.ToMe(keep_rate=0.9))
    whole = lf.measure.count(backbone("vit")).macs
    rate = lf.measure.keep_rate_for(model, 0.8 * whole)
    assert 0.5 <= rate < 1
    assert lf.measure.count(lf.with_options(model, keep_rate=rate)).macs <= 0.8 * whole
    with pytest.raises(ValueError, match=r"even a keep rate of 0\.5"):
        lf.measure.keep_rate_for(model, 1)
