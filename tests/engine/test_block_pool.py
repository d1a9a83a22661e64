"""The block pool's books, its prefix cache, and what it evicts."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tiergate.engine.block_pool import BlockPool, Chain, Digest, Hit, PrefixRoot, keyed_digest

SIZE = 4
DIGEST = keyed_digest(b"secret")


def ids_of(*tokens: int) -> array[int]:
    return array("q", tokens)


def fill(pool: BlockPool, ids: array[int], root: PrefixRoot, *, store: bool = True) -> list[int]:
    """Hold the blocks of a sequence as a scheduler would: the cached prefix, fresh ones, the full ones committed."""
    chain = Chain(root)
    hit = pool.find(chain, ids, len(ids) - 1)
    pool.take(hit)
    blocks = [*hit.blocks, *pool.allocate(-(-len(ids) // SIZE) - len(hit.blocks))]
    if store:
        for number in range(len(hit.blocks), len(ids) // SIZE):
            blocks[number] = pool.commit(chain, number, ids, blocks)
    return blocks


ROOT = PrefixRoot("salt", "model")


def hit_length(pool: BlockPool, ids: array[int], root: PrefixRoot = ROOT) -> int:
    return len(pool.find(Chain(root), ids, len(ids) - 1).blocks)


def test_prefix_is_found_after_release() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    ids = ids_of(*range(10))
    blocks = fill(pool, ids, ROOT)
    assert (pool.free, pool.cached, pool.active) == (5, 0, 3)
    pool.release(blocks)
    assert (pool.free, pool.cached, pool.active) == (6, 2, 0)
    hit = pool.find(Chain(ROOT), ids, len(ids) - 1)
    assert hit == Hit(tuple(blocks[:2]), 2)
    pool.check([])


def test_hit_leaves_at_least_one_token_to_compute() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    ids = ids_of(*range(8))
    pool.release(fill(pool, ids, ROOT))
    assert hit_length(pool, ids) == 1


@pytest.mark.parametrize(
    "other", [PrefixRoot("other", "model"), PrefixRoot("salt", "other"), PrefixRoot("salt", "model", "few")]
)
def test_roots_do_not_share(other: PrefixRoot) -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    ids = ids_of(*range(12))
    pool.release(fill(pool, ids, ROOT))
    assert hit_length(pool, ids) == 2
    assert hit_length(pool, ids, other) == 0


def test_roots_that_join_alike_do_not_share() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    ids = ids_of(*range(12))
    pool.release(fill(pool, ids, PrefixRoot("ab", "c")))
    assert hit_length(pool, ids, PrefixRoot("a", "bc")) == 0


@pytest.mark.parametrize(
    ("collide", "found"),
    [
        pytest.param(lambda data: b"x" * 16, 0, id="every block"),
        pytest.param(lambda data: data[-8:].ljust(16, b"\0"), 2, id="blocks with the same last token"),
    ],
)
def test_colliding_digests_share_nothing_wrong(collide: Digest, found: int) -> None:
    pool = BlockPool(16, SIZE, digest=collide)
    first, second = ids_of(*range(12)), ids_of(*range(50, 58), *range(8, 12))
    held = [fill(pool, first, ROOT), fill(pool, second, ROOT), fill(pool, first, PrefixRoot("b", "model"))]
    pool.check(held)
    assert not set(held[0]) & set(held[1])
    assert not set(held[0]) & set(held[2])
    for blocks in held:
        pool.release(blocks)
    pool.check([])
    assert hit_length(pool, second) == found


def test_the_same_words_in_two_places_are_two_blocks() -> None:
    pool = BlockPool(16, SIZE, digest=DIGEST)
    first, second = ids_of(*range(4), *range(8), 1), ids_of(*range(10, 14), *range(8), 1)
    held = [fill(pool, first, ROOT), fill(pool, second, ROOT)]
    pool.check(held)
    assert (hit_length(pool, first), hit_length(pool, second)) == (3, 3)


def test_unstored_blocks_are_free_at_once() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    pool.release(fill(pool, ids_of(*range(12)), ROOT, store=False))
    assert (pool.free, pool.cached) == (8, 0)


def test_caching_can_be_off() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST, caching=False)
    ids = ids_of(*range(12))
    pool.release(fill(pool, ids, ROOT))
    assert (pool.free, pool.cached) == (8, 0)
    assert hit_length(pool, ids) == 0


def test_evicts_leaves_and_oldest_first() -> None:
    pool = BlockPool(6, SIZE, digest=DIGEST)
    old, new = ids_of(*range(12)), ids_of(*range(20, 32))
    pool.release(fill(pool, old, ROOT))
    pool.release(fill(pool, new, ROOT))
    assert pool.free == 0
    taken = pool.allocate(1)
    assert hit_length(pool, ids_of(*old, 1)) == 2, "the leaf goes, its parents stay"
    assert hit_length(pool, ids_of(*new, 1)) == 3
    taken += pool.allocate(3)
    assert hit_length(pool, ids_of(*old, 1)) == 0
    assert hit_length(pool, ids_of(*new, 1)) == 2
    pool.check([taken])


def test_use_keeps_a_prefix_young() -> None:
    pool = BlockPool(4, SIZE, digest=DIGEST)
    old, new = ids_of(*range(8)), ids_of(*range(20, 28))
    pool.release(fill(pool, old, ROOT))
    pool.release(fill(pool, new, ROOT))
    hit = pool.find(Chain(ROOT), ids_of(*old, 1), 8)
    pool.take(hit)
    pool.release(hit.blocks)
    pool.allocate(2)
    assert hit_length(pool, ids_of(*old, 1)) == 2
    assert hit_length(pool, ids_of(*new, 1)) == 0


def test_a_duplicate_gives_way_to_the_original() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    ids = ids_of(*range(5))
    first, second = Chain(ROOT), Chain(ROOT)
    one, two = pool.allocate(2), pool.allocate(2)
    assert pool.commit(first, 0, ids, one) == one[0]
    assert pool.commit(second, 0, ids, two) == one[0]
    two[0] = one[0]
    pool.check([one, two])
    assert pool.active == 3
    assert pool.sole(two) == 1


def test_forgotten_content_is_not_found_again() -> None:
    pool = BlockPool(8, SIZE, digest=DIGEST)
    stem = ids_of(*range(8))
    good, bad = fill(pool, ids_of(*stem, *range(30, 38)), ROOT), fill(pool, ids_of(*stem, *range(40, 48)), ROOT)
    pool.release(good)
    pool.forget(bad[2:])
    assert hit_length(pool, ids_of(*stem, *range(40, 49))) == 2
    assert hit_length(pool, ids_of(*stem, *range(30, 39))) == 4
    pool.forget(bad[:1])
    pool.check([bad])
    assert hit_length(pool, ids_of(*stem, 1)) == 0
    assert pool.free == 4, "the other branch stood on forgotten blocks"
    pool.release(bad)
    pool.check([])
    assert pool.free == 8


def test_check_sees_wrong_books() -> None:
    pool = BlockPool(4, SIZE, digest=DIGEST)
    held = pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.check([held, held])
    with pytest.raises(AssertionError):
        pool.check([])


def test_allocation_beyond_the_pool_is_our_own_error() -> None:
    with pytest.raises(AssertionError):
        BlockPool(2, SIZE, digest=DIGEST).allocate(3)


class PoolMachine(RuleBasedStateMachine):
    """Sequences over few tokens and salts come, grow and go; the books hold and no hit is ever wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(10, 2, digest=DIGEST)
        self.held: list[tuple[array[int], Chain, list[int], bool]] = []
        self.content: dict[int, tuple[PrefixRoot, bytes]] = {}
        """What a model would have written into each block: its whole prefix."""

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from("ab"), store=st.booleans())
    def start(self, tokens: list[int], salt: str, store: bool) -> None:
        ids = array("q", tokens)
        chain = Chain(PrefixRoot(salt, "model"))
        hit = self.pool.find(chain, ids, len(ids) - 1)
        for number, block in enumerate(hit.blocks):
            assert self.content[block] == (chain.root, ids[: 2 * number + 2].tobytes())
        need = -(-len(ids) // 2) - len(hit.blocks)
        if need + hit.idle > self.pool.available:
            return
        self.pool.take(hit)
        blocks = [*hit.blocks, *self.pool.allocate(need)]
        for number in range(len(hit.blocks), len(ids) // 2):
            self.content[blocks[number]] = chain.root, ids[: 2 * number + 2].tobytes()
        if store:
            for number in range(len(hit.blocks), len(ids) // 2):
                blocks[number] = self.pool.commit(chain, number, ids, blocks)
                assert self.content[blocks[number]] == (chain.root, ids[: 2 * number + 2].tobytes())
        self.held.append((ids, chain, blocks, store))

    @precondition(lambda self: self.held and self.pool.available)
    @rule(pick=st.integers(0, 99), token=st.integers(0, 1))
    def grow(self, pick: int, token: int) -> None:
        ids, chain, blocks, store = self.held[pick % len(self.held)]
        if len(ids) % 2 == 0:
            blocks += self.pool.allocate(1)
        ids.append(token)
        number = len(ids) // 2 - 1
        if len(ids) % 2 == 0:
            self.content[blocks[number]] = chain.root, ids.tobytes()
            if store:
                blocks[number] = self.pool.commit(chain, number, ids, blocks)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def end(self, pick: int) -> None:
        self.pool.release(self.held.pop(pick % len(self.held))[2])

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def distrust(self, pick: int) -> None:
        self.pool.forget(self.held[pick % len(self.held)][2])

    @invariant()
    def books_hold(self) -> None:
        self.pool.check(blocks for _, _, blocks, _ in self.held)
        assert self.pool.free + self.pool.cached + self.pool.active == self.pool.blocks


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=8))
@settings(max_examples=50, deadline=None)
def test_deterministic(prompts: list[list[int]]) -> None:
    def history() -> list[list[int]]:
        pool = BlockPool(12, 2, digest=DIGEST)
        tables = []
        for prompt in prompts:
            tables.append(_run_through(pool, array("q", prompt)))
        return tables

    assert history() == history()


def _run_through(pool: BlockPool, ids: array[int]) -> list[int]:
    chain = Chain(ROOT)
    hit = pool.find(chain, ids, len(ids) - 1)
    pool.take(hit)
    blocks = [*hit.blocks, *pool.allocate(-(-len(ids) // 2) - len(hit.blocks))]
    for number in range(len(hit.blocks), len(ids) // 2):
        blocks[number] = pool.commit(chain, number, ids, blocks)
    pool.release(blocks)
    return blocks
