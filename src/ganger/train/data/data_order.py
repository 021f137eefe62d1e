"""Order of samples that does not depend on the number of ranks.

The samples of all epochs are one stream: a permutation of all samples for each epoch, one after the other. A global
batch is the next piece of the stream, and each rank has an equal piece of that. So the only state is the number of
samples consumed: whatever number of ranks goes on from there, the global batches are the same, every one is full, and
each sample is in each epoch exactly once.

A permutation is computed sample by sample (a Feistel network over the bits of the index, repeated while the result is
not an index), so that it takes no memory and any place of the stream can be entered at once.
"""

from __future__ import annotations

from ganger.train import launcher_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

ROUNDS = 6
_BITS = (1 << 64) - 1


class shard:  # noqa: N801 (used like a function)
    """Yield, for each global batch, the list of the indices that this rank trains on; endlessly, epoch after epoch.

        order = shard(len(dataset), batch=512, seed=1)
        loader = DataLoader(dataset, batch_sampler=order)

    Call `advance()` after each optimizer step, save `state()` with the checkpoint, and give it to `resume()` before the
    first batch is read. `batch` is the number of samples that all ranks train on in one step; without it, that of the
    job's batch policy. `rank` and `ranks` are those of the data-parallel group, unless all ranks are in it.

    Raises ValueError if the ranks cannot have equal pieces of a batch.
    """

    def __init__(
        self,
        samples: int,
        batch: int | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        self._rank = launcher_environment.rank() if rank is None else rank
        self._ranks = launcher_environment.world_size() if ranks is None else ranks
        of_policy = launcher_environment.batch_per_rank()
        if batch is None and of_policy is None:
            raise ValueError("shard() needs the global batch: give it as batch=, or write elastic.batch in the job")
        self.batch = batch or (of_policy or 0) * self._ranks
        self.consumed = 0
        self._samples, self._seed = samples, seed
        if samples < 1 or self.batch < 1:
            raise ValueError(f"shard() needs at least one sample and a batch of one, not {samples} and {self.batch}")
        if self.batch % self._ranks or not 0 <= self._rank < self._ranks:
            raise ValueError(
                f"a batch of {self.batch} samples has no equal pieces for rank {self._rank} of {self._ranks}"
            )

    @property
    def epoch(self) -> int:
        """Number of epochs that are complete."""
        return self.consumed // self._samples

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches after those that were consumed when the iteration began."""
        piece = self.batch // self._ranks
        first = self.consumed + self._rank * piece
        permutation = _Permutation(self._samples, self._seed, first // self._samples)
        while True:
            samples = []
            for place in range(first, first + piece):
                epoch, index = divmod(place, self._samples)
                if epoch != permutation.epoch:
                    permutation = _Permutation(self._samples, self._seed, epoch)
                samples.append(permutation.sample(index))
            yield samples
            first += self.batch

    def advance(self) -> None:
        """Count one more global batch as consumed: a loader reads ahead, so that reading does not tell."""
        self.consumed += self.batch

    def state(self) -> dict[str, Any]:
        """Return what is to be saved with a checkpoint; it can be written as JSON."""
        return {"samples": self._samples, "seed": self._seed, "consumed": self.consumed}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises ValueError if it is of other data or another order."""
        own = {"samples": self._samples, "seed": self._seed}
        other = {name: state.get(name) for name in own}
        if other != own:
            raise ValueError(f"the saved data order is of {other}, and this one of {own}")
        self.consumed = int(state["consumed"])


class _Permutation:
    """The order of the samples in one epoch."""

    def __init__(self, samples: int, seed: int, epoch: int) -> None:
        self.epoch = epoch
        self._samples = samples
        self._half = max(1, ((samples - 1).bit_length() + 1) // 2)
        key = _mix(_mix(seed) + epoch)
        self._rounds = [(_mix(key + number), _mix(key - number) | 1) for number in range(1, ROUNDS + 1)]

    def sample(self, index: int) -> int:
        """Return the sample at an index of the epoch."""
        half, mask = self._half, (1 << self._half) - 1
        while True:
            left, right = index >> half, index & mask
            for addend, factor in self._rounds:
                left, right = right, left ^ ((right + addend) * factor >> 40 & mask)
            index = left << half | right
            if index < self._samples:
                return index


def _mix(number: int) -> int:
    """Return 64 bits that each depend on all bits of a number (the finalizer of SplitMix64)."""
    number &= _BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _BITS
    return number ^ number >> 31
