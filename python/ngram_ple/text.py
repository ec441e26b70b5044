"""Text to ragged batches of tokens: paragraphs, a tokenizer.json, and chunks with the right history."""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ngram_ple.errors import NgramPleError

# Paragraphs are handed to the tokenizer in groups of this many characters: it works on several at once, and
# what it returns for a group takes far more memory than the ids.
_GROUP_CHARACTERS = 1 << 18


@dataclass(frozen=True)
class RaggedTokens:
    """Requests' tokens one after another.

    Attributes
    ----------
    input_ids : Tensor
        int64 ``[T]``.
    query_start_loc : Tensor
        int64 ``[R + 1]``, where each request begins, and T.
    """

    input_ids: torch.Tensor
    query_start_loc: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.input_ids.shape[0]

    @property
    def num_requests(self) -> int:
        """R."""
        return self.query_start_loc.shape[0] - 1

    def chunk(
        self, first: int, last: int, context_tokens: int, eos_token_id: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens [first, last) as a batch of their own, wherever it cuts requests.

        Parameters
        ----------
        first, last : int
            0 <= first <= last <= T.
        context_tokens : int
            N - 1, the tokens that a request's history has.
        eos_token_id : int
            What stands before a request's first token.

        Returns
        -------
        input_ids, query_start_loc, ngram_context : Tensor
            int64 ``[last - first]``, ``[r + 1]``, ``[r, N - 1]`` for the r requests that have tokens there,
            as `NGramEmbedding.forward` takes them.
        """
        begin = int(torch.searchsorted(self.query_start_loc, first, right=True)) - 1
        end = max(begin, int(torch.searchsorted(self.query_start_loc, last)))
        starts = self.query_start_loc[begin : end + 1].clamp(first, last) - first
        context = torch.full((end - begin, context_tokens), eos_token_id, dtype=torch.int64)
        if end > begin:  # only the first request can have begun earlier
            history = self.input_ids[max(int(self.query_start_loc[begin]), first - context_tokens) : first]
            context[0, context_tokens - history.shape[0] :] = history
        return self.input_ids[first:last], starts, context


class TextTokenizer:
    """A ``tokenizer.json`` as the `tokenizers` package reads it, without truncation, padding or added tokens.

    Parameters
    ----------
    path : path

    Raises
    ------
    OSError
        The file cannot be read.
    NgramPleError
        It is no tokenizer, or the package is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = self.path.read_bytes()
        try:
            module: Any = importlib.import_module("tokenizers")
        except ImportError:
            raise NgramPleError(
                "reading a tokenizer.json needs the package tokenizers: pip install 'ngram_ple[cli]'"
            ) from None
        try:
            self._tokenizer: Any = module.Tokenizer.from_str(data.decode())
        except Exception as error:  # the package raises Exception itself
            raise NgramPleError(
                f"{self.path}: must be a tokenizer.json that the tokenizers package reads: {error}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def token(self, token_id: int) -> str:
        """Return the text of a token, as the vocabulary spells it."""
        return str(self._tokenizer.id_to_token(token_id))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens around it."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]


def read_paragraphs(path: Path, progress: Callable[[int], object] | None = None) -> Iterator[str]:
    r"""Read the blank-line separated paragraphs of a UTF-8 text, line by line.

    Lines end in ``\n``, ``\r\n`` or ``\r``; one of white space alone is blank. A paragraph keeps its line
    breaks, as ``\n``, but not the last one. A byte order mark at the beginning is no text.

    Parameters
    ----------
    path : Path
    progress : callable, optional
        Called with the bytes of each line read.

    Raises
    ------
    OSError
        The file cannot be read.
    NgramPleError
        Bytes that are not UTF-8; their place is named.
    """
    offset = 0
    paragraph: list[str] = []
    with path.open("rb") as file:
        for raw in file:
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise NgramPleError(
                    f"{path}: must be UTF-8 text, got byte 0x{raw[error.start]:02x} at offset "
                    f"{offset + error.start}"
                ) from None
            if offset == 0:
                text = text.removeprefix("\ufeff")
            offset += len(raw)
            if progress is not None:
                progress(len(raw))
            for line in text.removesuffix("\n").removesuffix("\r").split("\r"):
                if line.strip():
                    paragraph.append(line)
                elif paragraph:
                    yield "\n".join(paragraph)
                    paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def tokenize(paragraphs: Iterable[str], tokenizer: TextTokenizer, vocab_size: int) -> RaggedTokens:
    """Tokenize paragraphs, one request each.

    Parameters
    ----------
    paragraphs : iterable of str
    tokenizer : TextTokenizer
    vocab_size : int
        V of the model; every token id must be below it.

    Raises
    ------
    NgramPleError
        A token id outside the vocabulary: the tokenizer is another model's.
    """
    ids = array("q")
    starts = array("q", [0])
    for group in _groups(paragraphs):
        for request in tokenizer.encode(group):
            largest = max(request, default=0)
            if largest >= vocab_size:
                raise NgramPleError(
                    f"token ids must be below the checkpoint's vocab_size {vocab_size}, got {largest} "
                    f"({tokenizer.token(largest)!r}) from {tokenizer.path} in paragraph {len(starts)}: "
                    "tokenizer and checkpoint do not belong together"
                )
            ids.extend(request)
            starts.append(len(ids))
    # frombuffer refuses an empty buffer
    input_ids = torch.frombuffer(ids, dtype=torch.int64) if ids else torch.empty(0, dtype=torch.int64)
    return RaggedTokens(input_ids, torch.frombuffer(starts, dtype=torch.int64))


def _groups(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for paragraph in paragraphs:
        group.append(paragraph)
        size += len(paragraph)
        if size >= _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
