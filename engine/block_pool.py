"""Owns the KV blocks of one lane: which are free, held by sequences, or kept for the prefix cache."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

Digest = Callable[[bytes], bytes]


def keyed_digest(key: bytes) -> Digest:
    """128-bit blake2b under a secret `key` (at most 64 bytes), so that nobody can craft prompts that collide."""

    def digest(data: bytes) -> bytes:
        return blake2b(data, digest_size=16, key=key).digest()

    return digest


@dataclass(frozen=True, slots=True)
class PrefixRoot:
    """What two sequences must share besides tokens before they may share keys and values."""

    salt: str
    model: str
    """Name and version of the weights."""
    policy: str = ""
    """How the values were computed where that is not the model's own way (fewer experts, for example)."""


@dataclass(slots=True)
class Chain:
    """The hash chain of one sequence's full blocks, grown as far as somebody asked."""

    root: PrefixRoot
    digests: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hit:
    """A cached prefix. Nothing is held yet: `BlockPool.take` does that."""

    blocks: tuple[int, ...] = ()
    idle: int = 0
    """Of these, how many nobody holds now; taking them leaves that many fewer for others."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a full block holds, whichever block it is."""

    digest: bytes
    """Of the whole chain up to it, the root (and so the salt) included."""
    parent: bytes
    """Digest of the block before it; of the first block, that of the root."""
    ids: bytes
    """Its token ids, int64."""
    number: int
    """Blocks before it."""


class Spill(Protocol):
    """Told of what leaves the pool."""

    def evicted(self, block: int, content: Content) -> None:
        """`block` is about to be used for something else; until this returns its memory is as it was."""
        ...

    def forgotten(self, digest: bytes) -> None:
        """Content of this digest is not to be trusted any more."""
        ...


class _Entry:
    """A full block in the index. `parent` is compared by identity, which proves the whole chain behind it."""

    __slots__ = ("block", "digest", "ids", "number", "parent")

    def __init__(self, block: int, digest: bytes, ids: bytes, parent: _Entry | PrefixRoot, number: int) -> None:
        self.block = block
        self.digest = digest
        self.ids = ids
        self.parent = parent
        self.number = number


class BlockPool:
    """Reference-counted blocks with a prefix cache over them.

    Every block is in exactly one state: free (no content of use), active (held by one or more sequences) or cached
    (held by none, but indexed, and evicted when free ones run out).

    Eviction is least recently used, and always of a leaf. No child counts are kept for that. A sequence that holds an
    indexed block holds every block before it (`commit` swaps a duplicate for the indexed original), and `release`
    gives up the deepest first; so a block always becomes idle later than its descendants, and the oldest idle block
    has none left.
    """

    def __init__(
        self, blocks: int, block_size: int, *, digest: Digest, caching: bool = True, spill: Spill | None = None
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._digest = digest
        self._caching = caching
        self._spill = spill
        self._refs = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, _Entry] = {}
        self._entry_of: list[_Entry | None] = [None] * blocks

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._idle)

    @property
    def active(self) -> int:
        return self.blocks - len(self._free) - len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now: free ones, and cached ones by eviction."""
        return len(self._free) + len(self._idle)

    def sole(self, blocks: Iterable[int]) -> int:
        """How many of these held blocks have no other holder: what their release would make available."""
        refs = self._refs
        return sum(refs[block] == 1 for block in blocks)

    def find(self, chain: Chain, ids: array[int], limit: int) -> Hit:
        """The longest cached prefix of `ids[:limit]` in whole blocks. Changes nothing but `chain`, which it extends."""
        if not self._caching or not self._index:
            return Hit()
        size = self.block_size
        found: list[int] = []
        parent: _Entry | PrefixRoot = chain.root
        for number in range(limit // size):
            data = ids[number * size : (number + 1) * size].tobytes()
            entry = self._index.get(self._link(chain, number, data))
            if entry is None or not _follows(entry, parent, data):
                break
            found.append(entry.block)
            parent = entry
        return Hit(tuple(found), sum(self._refs[block] == 0 for block in found))

    def content(self, chain: Chain, ids: array[int], number: int) -> Content:
        """What block `number` of a sequence with these ids holds once it is full. Changes nothing but `chain`."""
        size = self.block_size
        for each in range(len(chain.digests), number):
            self._link(chain, each, ids[each * size : (each + 1) * size].tobytes())
        data = ids[number * size : (number + 1) * size].tobytes()
        digest = self._link(chain, number, data)
        return Content(digest, self._before(chain, number), data, number)

    def adopt(self, chain: Chain, hit: Hit, contents: Sequence[Content]) -> list[int]:
        """Hold the blocks of `hit`, and a fresh one for each of `contents`, which follow it, indexed as if computed.

        The caller has made sure that `available` suffices, fills the fresh ones at once, and in the end releases all
        that are returned, which leaves them cached. None of the contents may be here already, see `has`.
        """
        self.take(hit)
        fresh = self.allocate(len(contents))
        parent: _Entry | PrefixRoot | None = self._entry_of[hit.blocks[-1]] if hit.blocks else chain.root
        for block, content in zip(fresh, contents, strict=True):
            assert parent is not None
            assert content.digest not in self._index, "adopted content is here already"
            entry = _Entry(block, content.digest, content.ids, parent, content.number)
            self._index[content.digest] = entry
            self._entry_of[block] = entry
            parent = entry
        return [*hit.blocks, *fresh]

    def has(self, digest: bytes) -> bool:
        """Whether content of this digest is indexed."""
        return digest in self._index

    def idle_contents(self) -> list[tuple[int, Content]]:
        """The blocks that nobody holds, least recently used first, and what they hold."""
        return [(block, self._content(entry)) for block in self._idle if (entry := self._entry_of[block])]

    def take(self, hit: Hit) -> None:
        """Hold the blocks of a hit found since the last eviction."""
        for block in hit.blocks:
            if self._refs[block] == 0:
                del self._idle[block]
            self._refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hold `count` fresh blocks, evicting as needed. The caller has made sure that `available` suffices."""
        assert count <= self.available, "allocation beyond what the plan saw"
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._refs[block] = 1
            taken.append(block)
        return taken

    def commit(self, chain: Chain, number: int, ids: array[int], table: Sequence[int]) -> int:
        """Index `table[number]`, held and now full, as block `number` of `chain`; return the block to hold instead.

        That is another one when the same content is indexed already: the caller's is then given up and the original
        held. Blocks of a chain must be committed in order.
        """
        block = table[number]
        if not self._caching:
            return block
        parent = self._entry_of[table[number - 1]] if number else chain.root
        if parent is None:  # it lost its place to a colliding digest, and so do its descendants
            return block
        size = self.block_size
        data = ids[number * size : (number + 1) * size].tobytes()
        digest = self._link(chain, number, data)
        entry = self._index.get(digest)
        if entry is None:
            entry = _Entry(block, digest, data, parent, number)
            self._index[digest] = entry
            self._entry_of[block] = entry
        if entry.block == block or not _follows(entry, parent, data):
            return block
        self.take(Hit((entry.block,)))
        self.release((block,))
        return entry.block

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one hold on each block, deepest first. Indexed ones stay cached when it was the last."""
        refs = self._refs
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] == 0:
                if self._entry_of[block] is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None

    def forget(self, blocks: Iterable[int]) -> None:
        """Take blocks of doubtful content, and all that was computed on top of them, out of the prefix cache.

        Whoever holds them keeps them. Linear in the index.
        """
        doomed = {entry for block in blocks if (entry := self._entry_of[block]) is not None}
        if not doomed:
            return
        for entry in self._index.values():  # parents come before their children: they were indexed before
            if entry.parent in doomed:
                doomed.add(entry)
        for entry in sorted(doomed, key=lambda entry: entry.block):
            del self._index[entry.digest]
            self._entry_of[entry.block] = None
            if self._spill:
                self._spill.forgotten(entry.digest)
            if self._refs[entry.block] == 0:
                del self._idle[entry.block]
                self._free.append(entry.block)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify the books against the blocks that sequences hold. Raises AssertionError; linear in the pool."""
        held = [0] * self.blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._refs, "reference counts differ from table occurrences"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & idle, "a block is both free and cached"
        for block in range(self.blocks):
            assert (held[block] == 0) == (block in free or block in idle), "a block is held and not, or lost"
            entry = self._entry_of[block]
            assert entry is None or (entry.block == block and self._index.get(entry.digest) is entry)
            assert entry is None or block not in free, "an indexed block is free"
            assert entry is not None or block not in idle, "an unindexed block is cached"
        assert len(self._index) == sum(entry is not None for entry in self._entry_of)
        age = {block: when for when, block in enumerate(self._idle)}
        for entry in self._index.values():
            parent = entry.parent
            if isinstance(parent, _Entry):
                assert self._index.get(parent.digest) is parent, "an indexed block lost its parent"
                if parent.block in age:
                    assert age.get(entry.block, self.blocks) < age[parent.block], "a parent is idle before its child"

    def _link(self, chain: Chain, number: int, data: bytes) -> bytes:
        """Digest of block `number`, whose ids are `data`; those before it are known already."""
        digests = chain.digests
        if number == len(digests):
            digests.append(self._digest(self._before(chain, number) + data))
        return digests[number]

    def _before(self, chain: Chain, number: int) -> bytes:
        """Digest of what comes before block `number`."""
        return chain.digests[number - 1] if number else self._digest(_root_bytes(chain.root))

    def _content(self, entry: _Entry) -> Content:
        parent = entry.parent
        before = parent.digest if isinstance(parent, _Entry) else self._digest(_root_bytes(parent))
        return Content(entry.digest, before, entry.ids, entry.number)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        entry = self._entry_of[block]
        assert entry is not None
        if self._spill:
            self._spill.evicted(block, self._content(entry))
        del self._index[entry.digest]
        self._entry_of[block] = None
        return block


def _follows(entry: _Entry, parent: _Entry | PrefixRoot, data: bytes) -> bool:
    same = entry.parent is parent if isinstance(parent, _Entry) else entry.parent == parent
    return same and entry.ids == data


def _root_bytes(root: PrefixRoot) -> bytes:
    """Injective: no two roots give the same bytes."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (root.salt, root.model, root.policy)]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
