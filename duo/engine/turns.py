"""Turns: a queue in which clients take turns."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Turns(Generic[T]):
    """A queue in which clients take turns.

    Each job gets the time at which it would end if all clients were served at once, at the same rate, and the one that
    would end first is taken (weighted fair queueing). So whoever asks for little waits little, however much others have
    asked for before, and a client that asks for much waits for its own jobs only. Jobs of one client keep their order.
    """

    _now: float = 0.0  # what each client that waits would have got so far
    _ends: dict[Hashable, float] = field(default_factory=dict)  # of the last job of each client; past ones are left out
    _jobs: list[tuple[float, Hashable, float, T]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: T, client: Hashable = None, cost: float = 0.0) -> None:
        """Queue a job of a client; `cost`: how long it takes, in any unit."""
        self._ends[client] = end = max(self._now, self._ends.get(client, 0.0)) + cost
        self._jobs.append((end, client, cost, job))

    @property
    def jobs(self) -> list[T]:
        """Those that wait."""
        return [job for *_, job in self._jobs]

    def in_order(self) -> list[T]:
        """Those that wait, the one whose turn it is first."""
        return [job for *_, job in sorted(self._jobs, key=itemgetter(0))]

    def take(self, job: T | None = None) -> T:
        """Remove a job: the one whose turn it is, of which there must be one, unless another is named."""
        jobs = (one for one in self._jobs if job is None or one[3] is job)
        found = min(jobs, key=itemgetter(0))  # of several, the first
        self._jobs.remove(found)
        n_clients = sum(end > self._now for end in self._ends.values())
        self._now += found[2] / max(1, n_clients)
        self._ends = {client: end for client, end in self._ends.items() if end > self._now}
        return found[3]

    def remove(self, job: T) -> bool:
        """Remove a job. False if it is not there."""
        for i, (_, client, cost, other) in enumerate(self._jobs):
            if other is job:
                del self._jobs[i]
                if client in self._ends:
                    self._ends[client] -= cost
                return True
        return False
