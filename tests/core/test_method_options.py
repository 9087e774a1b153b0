"""Methods by name and text: what is understood, and what is refused in one line."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from families import BACKBONES, backbone

import leanformer as lf
from leanformer.core import METHODS, Method, method_from, parse_method, select


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Method, name="plain"):
    """A method with an option of every kind, which swaps nothing."""

    rate: float = 0.5
    count: int = 1
    flag: bool = False
    mode: Literal["soft", "hard"] = "soft"
    at: tuple[int, ...] | None = None
    pair: tuple[int, float] = (1, 2.0)
    label: str = "a"

    def swaps(self, model: Any) -> dict[str, Any]:
        return {}


METHODS.pop("plain")


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    METHODS["plain"] = Plain
    yield
    METHODS.pop("plain")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("plain", {}),
        ("plain:", {}),
        (" plain : rate = 0.7 , count = 3 ", {"rate": 0.7, "count": 3}),
        ("plain:rate=1", {"rate": 1}),
        ("plain:at=(3,6,9),flag=true", {"at": (3, 6, 9), "flag": True}),
        ("plain:at=[3,6],flag=False", {"at": (3, 6), "flag": False}),
        ("plain:at=none,mode=hard", {"at": None, "mode": "hard"}),
        ("plain:at=(),pair=(2,3)", {"at": (), "pair": (2, 3)}),
        ("plain:label=some text", {"label": "some text"}),
    ],
)
def test_options_are_read_from_text(text: str, options: dict[str, Any]) -> None:
    assert parse_method(text) == Plain(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", "unknown method 'magic'; known methods: "),
        ("", "unknown method ''"),
        ("plain:rat=1", "plain has no option 'rat'; its options: rate, count, flag"),
        ("plain:rate", "'rate' in 'plain:rate' is not option=value"),
        ("plain:rate=1,rate=2", "'rate' is given twice in 'plain:rate=1,rate=2'"),
        ("plain:rate=high", "plain: rate must be a number, not 'high'"),
        ("plain:rate=true", "rate must be a number, not True"),
        ("plain:count=1.5", "count must be a whole number, not 1.5"),
        ("plain:flag=fasle", "flag must be True or False, not 'fasle'"),
        ("plain:flag=1", "flag must be True or False, not 1"),
        ("plain:mode=fuzzy", "mode must be soft or hard, not 'fuzzy'"),
        ("plain:at=3", "at must be some values in brackets, each a whole number, or None, not 3"),
        ("plain:at=(1,'x')", "at must be some values in brackets"),
        ("plain:pair=(1,2,3)", "pair must be 2 values in brackets"),
        ("plain:rate=none", "rate must be a number, not None"),
    ],
)
def test_wrong_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text)


@pytest.mark.parametrize("rate", ["0", "1.5", "-0.1", "nan", "high", "0.7,at=(99,)"])
def test_wrong_keep_rates_and_places_are_refused(rate: str) -> None:
    with pytest.raises(ValueError, match=r"keep_rate|99"):
        lf.apply(backbone("vit"), parse_method(f"evit:keep_rate={rate}"))


def test_a_method_on_a_backbone_it_cannot_serve_is_refused_with_the_reason() -> None:
    for family in ("swin", "mixer", "timm_poolformer"):
        with pytest.raises(ValueError, match=r"(?i)evit.*(class token|layout|NLC|tokens)"):
            lf.apply(backbone(family), method_from("evit", {}))


@pytest.mark.parametrize(
    "text",
    [
        "evit:at=(2,1),keep_rate=(0.5,0.9)", "evit:at=(2,1)", "tome:at=(2,1),merged=(4,2)", "tome:at=(1,1)",
        "sit:at=(2,1)", "repa:blocks=(2,1),idle_ratio=(0.25,0.75)", "repa:stages=(1,0),idle_ratio=(0.25,0.75)",
    ],
)  # fmt: skip
def test_places_rise_so_that_values_for_each_go_where_they_are_meant(text: str) -> None:
    with pytest.raises(ValueError, match="give different numbers in rising order"):
        parse_method(text)


def test_the_order_of_places_does_not_matter_where_one_value_is_for_all() -> None:
    one, other = (lf.apply(backbone("vit"), parse_method(f"repa:blocks={blocks}")) for blocks in ((2, 1), (1, 2)))
    assert list(one.state_dict()) == list(other.state_dict())


def test_methods_are_plain_values() -> None:
    one = Plain(at=(1, 2))
    assert one == method_from("plain", one.fields())
    assert one.replace(rate=0.1).rate == 0.1
    assert len({one, Plain(at=(1, 2)), Plain()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.rate = 0.3  # type: ignore[misc]
    with pytest.raises(NotImplementedError, match="Plain has no neutral setting"):
        one.off()


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("vit", {"slot": "mix", "blocks": (4,)}, "block 4 does not exist; this model has blocks 0 to 3"),
        ("vit", {"slot": "mix", "blocks": (-1,)}, "block -1 does not exist"),
        ("swin", {"slot": "mix", "stages": (2,)}, "stage 2 does not exist; this model has stages 0 to 1"),
        ("vit", {"slot": "nonsense"}, "have no 'nonsense' slot"),
        ("gmlp", {"slot": "ffn"}, r"have no 'ffn' slot, only \('pre', 'mix'\)"),
    ],
)
def test_places_that_do_not_exist_are_refused(family: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(backbone(family), **options)


def test_places_are_chosen_by_block_and_stage() -> None:
    assert list(select(backbone("swin"), "mix", stages=(1,))) == ["layers.1.blocks.0.mix", "layers.1.blocks.1.mix"]
    assert list(select(backbone("vit"), "ffn", blocks=(0, 3))) == ["blocks.0.ffn", "blocks.3.ffn"]
    assert list(select(backbone("vit"), "pre", blocks=())) == []
    for family in BACKBONES:
        assert select(backbone(family), "pre")
