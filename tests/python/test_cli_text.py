"""Paragraphs, tokens and chunks of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_inputs import EOS, VOCAB, flat, some_requests, write_tokenizer
from ngram_ple.text import RaggedTokens, TextTokenizer, read_paragraphs, tokenize

PARAGRAPHS = {
    b"": [],
    b"\n\n \n": [],
    b"one": ["one"],
    b"one\n": ["one"],
    b"\n\none\ntwo\n\n\nthree": ["one\ntwo", "three"],
    b"one\r\ntwo\r\n\r\nthree\r\n": ["one\ntwo", "three"],
    b"one\rtwo\r\rthree\r": ["one\ntwo", "three"],
    b"one\n \t \ntwo": ["one", "two"],
    b"  one \n\n two": ["  one ", " two"],
    b"\xef\xbb\xbfone\n\n\xef\xbb\xbftwo": ["one", "\ufefftwo"],
    "é\u2028\x0c\n\nß".encode(): ["é\u2028\x0c", "ß"],
}


@pytest.mark.parametrize("text", PARAGRAPHS)
def test_paragraphs(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(text)
    read: list[int] = []
    assert list(read_paragraphs(file, read.append)) == PARAGRAPHS[text]
    assert sum(read) == len(text)


def test_tokenize(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(write_tokenizer(tmp_path / "tokenizer.json"))
    assert tokenizer.vocab_size == VOCAB
    assert (tokenizer.token_id("w5"), tokenizer.token_id("none")) == (5, None)
    tokens = tokenize(["w1 w2 w3 w4 w5 w6", "", "w7 unknown"], tokenizer, VOCAB)
    assert tokens.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert tokens.query_start_loc.tolist() == [0, 6, 6, 8]
    assert (tokens.num_tokens, tokens.num_requests) == (8, 3)
    assert tokenize([], tokenizer, VOCAB).num_tokens == 0


@pytest.mark.parametrize("context", [1, 2, 5])
def test_chunk(context: int) -> None:
    requests = some_requests(3)
    for empty in (0, 0, 3, 4, 7):
        requests.insert(empty, [])
    all_tokens = flat(requests)
    starts = [0]
    for request in requests:
        starts.append(starts[-1] + len(request))
    tokens = RaggedTokens(torch.tensor(all_tokens), torch.tensor(starts))
    for first in range(len(all_tokens) + 1):
        for last in range(first, len(all_tokens) + 1):
            ids, qsl, history = tokens.chunk(first, last, context, EOS)
            assert ids.tolist() == all_tokens[first:last]
            assert history.shape == (len(qsl) - 1, context)
            assert (int(qsl[0]), int(qsl[-1])) == (0, last - first)
            for request in range(len(qsl) - 1):
                begin, end = int(qsl[request]), int(qsl[request + 1])
                if begin == end:
                    continue
                whole = max(start for start in starts if start <= first + begin)
                before = all_tokens[whole : first + begin][-context:]
                assert history[request].tolist() == [EOS] * (context - len(before)) + before
                assert not set(starts) & set(range(first + begin + 1, first + end))
