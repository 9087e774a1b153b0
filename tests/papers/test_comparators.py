"""Models of others in the papers' tables: counted where timm has them, quoted where it has not."""

import pytest
import torch

from lab.results_page import papers_table
from leanformer.papers.comparators import compared
from leanformer.papers.table import agrees, render
from leanformer.papers.tables import TABLES

OTHERS = [(name, row) for name, tables in TABLES.items() for row in tables.rows if row.table.endswith("others")]


def test_a_quoted_model_is_shown_as_printed_and_not_judged():
    rows = [compared("6, others", "PVT-Small", "", "25", "3.8", top1="79.8", speed="1622.53")]
    table, wrong = render("riformer", rows)
    assert wrong == []
    assert [next(iter(column.cells)) for column in table.columns][:5] == ["6, others", "PVT-Small", "25", "", "3.8"]
    page, wrong = papers_table({"riformer": (rows, "")}, [])
    assert "| riformer | 6, others | PVT-Small | 25 |  | 3.8 |  | 79.8 | 1622.53 |" in page
    assert wrong == []


def test_a_model_of_timms_is_counted_at_its_image_size():
    row = compared("3, others", "EfficientNet-B1", "efficientnet_b1", "7.8", "0.7", size=240, top1="79.1")
    params, macs = row.measure()
    assert agrees(row.params, params)
    assert agrees(row.macs, macs)
    assert row.published == {"top-1": "79.1"}
    with pytest.raises(AssertionError, match="no such model"):
        compared("3", "x", "no such model")


def test_models_of_others_stand_in_three_papers_tables():
    assert {name for name, _ in OTHERS} == {"metaformer", "riformer", "sit"}
    assert sum(row.build is None for _, row in OTHERS) > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "row"), [pair for pair in OTHERS if pair[1].build is not None])
def test_a_model_of_others_counts_what_the_paper_prints_or_says_why_not(name, row):
    params, macs = row.measure()
    assert row.differs or (agrees(row.params, params) and agrees(row.macs, macs))
    with torch.device("meta"):
        assert row.build().num_classes == 1000
