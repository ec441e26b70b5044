"""A random scheduler: what an engine does to requests between their first and their last token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

EOS = 7
VOCAB = 1000


@dataclass
class Request:
    """One sequence as the model would produce it, and how much of it is computed."""

    tokens: list[int]
    prompt: int  # tokens that are given at the start
    stop: int  # where the engine ends it, perhaps before the sequence does
    computed: int = 0
    slot: int = -1
    seen: dict[int, list[int]] = field(default_factory=dict)  # ids of each accepted position


@dataclass
class Chunk:
    request: Request
    tokens: list[int]
    accepted: int


class Scheduler:
    """Arrivals, prefix-cache hits, chunked prefill, speculation, preemption and early stops, at random."""

    def __init__(self, rng: random.Random, slots: int, budget: int) -> None:
        self.rng = rng
        self.budget = budget
        self.free = list(range(slots))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.finished: list[Request] = []

    def arrive(self) -> None:
        rng = self.rng
        length = rng.randint(2, 60)
        tokens = [
            EOS if rng.random() < 0.1 else rng.randrange(rng.choice([12, VOCAB])) for _ in range(length)
        ]
        self.waiting.append(Request(tokens, rng.randint(1, length - 1), rng.randint(2, length)))

    def admit(self) -> list[Request]:
        """Give waiting requests their slots; some of their tokens may lie in a prefix cache."""
        admitted = []
        while self.free and self.waiting:
            request = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            known = max(request.prompt, request.computed)
            request.computed = self.rng.choice([0, 0, self.rng.randrange(known)])
            request.slot = self.free.pop(self.rng.randrange(len(self.free)))
            self.running.append(request)
            admitted.append(request)
        return admitted

    def preempt(self) -> None:
        for request in self.rng.sample(self.running, min(len(self.running), self.rng.randint(0, 2))):
            self._leave(request)
            self.waiting.append(request)

    def chunks(self) -> list[Chunk]:
        """What the next step computes: some of the running requests in any order."""
        rng, left, chunks = self.rng, self.budget, []
        for request in rng.sample(self.running, rng.randint(0, len(self.running))):
            if left == 0:
                break
            known = max(request.prompt, max(request.seen, default=-1) + 2)  # the one sampled last as well
            size = rng.randint(1, min(left, known - request.computed))
            tokens = request.tokens[request.computed : request.computed + size]
            if request.computed + size == known:
                tokens += self._drafts(request, known, left - size)
            accepted = size + sum(1 for _ in _agreeing(tokens[size:], request.tokens[known : request.stop]))
            left -= len(tokens)
            chunks.append(Chunk(request, tokens, accepted))
        return chunks

    def _drafts(self, request: Request, known: int, most: int) -> list[int]:
        """Guesses of the tokens to come; placeholders where a drafter has none."""
        rng = self.rng
        truth = request.tokens[known : known + rng.randint(0, min(4, most))]
        return [token if rng.random() < 0.7 else rng.choice([-1, rng.randrange(VOCAB)]) for token in truth]

    def done(self, chunk: Chunk, ids: list[list[int]]) -> None:
        request = chunk.request
        for row in ids[: chunk.accepted]:
            request.seen[request.computed] = row
            request.computed += 1
        if request.computed >= request.stop or self.rng.random() < 0.01:
            self._leave(request)
            self.finished.append(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.free.append(request.slot)
        request.slot = -1


def _agreeing(drafts: list[int], truth: list[int]) -> list[int]:
    agreed = []
    for draft, token in zip(drafts, truth, strict=False):
        if draft != token:
            break
        agreed.append(token)
    return agreed
