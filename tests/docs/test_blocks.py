"""Every command and every Python block on the site and in the README runs, or says why not."""

import pytest
from blocks import OTHER, RUN, blocks, pages, run_block

import leanformer as lf

PAGES = pages()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language_and_why_it_is_left_out(page):
    for block in blocks(page):
        place = f"{page}:{block.line}"
        assert block.language in (*RUN, *OTHER), f"{place} has the language '{block.language}'"
        kind, _, why = block.marker.partition(",")
        assert kind in ("", "slow", "skip"), f"{place} is marked '{block.marker}'"
        assert kind != "skip" or len(why.split()) > 1, f"{place} does not say why it is left out"


@pytest.mark.parametrize("page", [page for page in PAGES if any(_.language in RUN for _ in blocks(page))])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_quick_blocks_run(page, here):
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.language in RUN and not block.skipped and not block.slow and not block.example:
            run_block(block, names)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", [page for page in PAGES if any(_.slow or _.example for _ in blocks(page))])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_blocks_run(page, here):
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.language in RUN and not block.skipped:
            run_block(block, names)


def test_a_block_that_fails_is_seen(here):
    block = blocks("docs/howto/lean.md")[1]
    assert block.language == "python"
    broken = type(block)(block.page, block.line, "python", "lf.no_such_name", "")
    with pytest.raises(AttributeError):
        run_block(broken, {"lf": lf})
