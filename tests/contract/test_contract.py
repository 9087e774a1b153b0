"""Every method on every backbone holds the contract, or refuses the backbone with a reason."""

import itertools

import pytest
from contract_checks import CHECKS, SECONDS, check_composes_in_any_order
from contract_example import Gain
from contract_models import refusal
from families import BACKBONES, backbone
from served import pinned, served

from leanformer.core import METHODS, Method

CONTRACTED: dict[str, type[Method]] = {**METHODS, "gain": Gain}
exhaustive = pytest.mark.exhaustive
SAMPLED = {"slab": ("vit", "poolformer")}
"""Methods that serve a comparison alone → the families on which they are checked every time."""


def _marks(family: str, *methods: str) -> list:
    return [exhaustive] if any(family not in SAMPLED.get(method, BACKBONES) for method in methods) else []


def _cases() -> list:
    return [
        pytest.param(
            check,
            method,
            family,
            marks=[exhaustive] if family not in SECONDS.get(check, BACKBONES) else _marks(family, method),
        )
        for check, method, family in itertools.product(CHECKS, CONTRACTED, BACKBONES)
    ]


def _pairs() -> list:
    return [
        pytest.param(one, other, family, marks=_marks(family, one, other))
        for (one, other), family in itertools.product(itertools.combinations(CONTRACTED, 2), BACKBONES)
    ]


@pytest.mark.parametrize(("check", "method", "family"), _cases())
def test_method_holds(check: str, method: str, family: str) -> None:
    chosen, model = CONTRACTED[method](), backbone(family)
    if reason := refusal(chosen, model):
        pytest.skip(reason)
    CHECKS[check](chosen, model)


@pytest.mark.parametrize(("one", "other", "family"), _pairs())
def test_methods_compose_in_any_order_or_say_why_not(one: str, other: str, family: str) -> None:
    first, second, model = CONTRACTED[one](), CONTRACTED[other](), backbone(family)
    if reason := refusal(first, model) or refusal(second, model):
        pytest.skip(reason)
    check_composes_in_any_order(first, second, model)


@pytest.mark.quick
def test_methods_serve_and_refuse_the_families_that_are_pinned() -> None:
    now = {method: answers for method, answers in served().items() if method != "gain"}
    assert now == pinned(), "served.json says otherwise; tests/contract/served.py writes it anew where that is meant"


@pytest.mark.parametrize("method", CONTRACTED)
def test_method_serves_at_least_one_backbone(method: str) -> None:
    assert any(refusal(CONTRACTED[method](), backbone(family)) is None for family in BACKBONES)
