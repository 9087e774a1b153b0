"""EViT's tables: every row counted as the paper counts, and as the published code's README does."""

import pytest

from leanformer.papers.evit import TABLES
from leanformer.papers.table import agrees

ROWS = TABLES.rows


def test_all_rows_of_tables_2_to_7_are_there():
    tables = [row.table for row in ROWS]
    assert {name: tables.count(name) for name in dict.fromkeys(tables)} == {
        "2a": 6, "2b": 5, "3a": 6, "3b": 3, "4": 5, "5": 2, "6a": 7, "6b": 8, "7": 4
    }  # fmt: skip


@pytest.mark.parametrize("row", [ROWS[0], ROWS[8], ROWS[18], ROWS[-1]], ids=lambda row: row.model)
def test_the_papers_macs_follow_by_its_own_way_of_counting(row):
    (_, ours), (_, as_paper) = row.both()
    assert agrees(row.macs, as_paper)
    assert agrees(row.published["README MACs"], ours)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if not row.differs], ids=lambda row: f"{row.table} {row.model}")
def test_every_row_agrees(row):
    (_, ours), (_, as_paper) = row.both()
    assert agrees(row.macs, as_paper)
    assert row.table == "2a" or agrees(row.published["README MACs"], ours)
