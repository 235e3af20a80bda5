"""Every block of a response has an id of its own."""

from hypothesis import given
from hypothesis import strategies as st

from rxllm.wire.event_order import BlockIds

ARRIVING = st.none() | st.sampled_from(["", "a", "block_0", "block_1", "block_2", "block_10"])


def test_blocks_without_an_id_are_counted():
    ids = BlockIds()
    assert [ids.of(None) for _ in range(3)] == ["block_0", "block_1", "block_2"]


def test_an_id_that_has_arrived_is_not_given_again():
    ids = BlockIds()
    assert [ids.of(id) for id in ("block_0", None, "block_2", None)] == ["block_0", "block_1", "block_2", "block_3"]


def test_an_id_that_arrives_after_it_was_given_is_replaced_for_good():
    ids = BlockIds()
    assert [ids.of(id) for id in (None, "block_0", "block_0", None)] == ["block_0", "block_1", "block_1", "block_2"]


@given(st.lists(ARRIVING))
def test_no_two_blocks_have_the_same_id(arriving):
    ids = BlockIds()
    names = [ids.of(id) for id in arriving]
    assert len(set(names)) == arriving.count(None) + len(set(arriving) - {None})


@given(st.lists(ARRIVING))
def test_only_an_id_that_was_given_before_is_replaced(arriving):
    ids, names = BlockIds(), []
    for id in arriving:
        name = ids.of(id)
        assert id in (None, name) or id in names
        names.append(name)
