"""The contract suite is proven: each broken method fails the check that is there for it, and passes once mended."""

import pytest
from contract_broken import BROKEN, ORDERED, OtherGain, RefusesSilently
from contract_checks import CHECKS, SECONDS, check_composes_in_any_order
from contract_example import Gain, known
from contract_models import refusal
from families import backbone


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_method_fails_its_check(what: str) -> None:
    check, method, message = BROKEN[what]
    with known(method), pytest.raises((Exception, pytest.fail.Exception), match=f"(?is){message}"):
        CHECKS[check](method(), backbone("vit"))


def test_every_check_has_a_broken_method() -> None:
    assert {check for check, _, _ in BROKEN.values()} == set(CHECKS)


@pytest.mark.parametrize("check", [name for name in CHECKS if name not in SECONDS])
def test_the_example_passes_the_same_checks_on_the_same_backbone(check: str) -> None:
    CHECKS[check](Gain(), backbone("vit"))


@pytest.mark.parametrize("what", ORDERED)
def test_a_method_whose_order_shows_fails_composition(what: str) -> None:
    with known(ORDERED[what], OtherGain), pytest.raises(AssertionError, match=r"the order shows|some orders"):
        check_composes_in_any_order(ORDERED[what](), OtherGain(), backbone("vit"))


def test_two_examples_on_two_blocks_compose() -> None:
    with known(OtherGain):
        check_composes_in_any_order(Gain(), OtherGain(), backbone("vit"))


def test_a_refusal_without_a_reason_fails() -> None:
    with known(RefusesSilently), pytest.raises(AssertionError, match="without a reason"):
        refusal(RefusesSilently(), backbone("vit"))
