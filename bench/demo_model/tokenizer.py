"""A byte-level BPE tokenizer: trained here, stored as a Hugging Face tokenizer.json.

The pre-tokenizer is Qwen's, so every digit is a token of its own. Merges are learnt from ASCII text
only: whatever lies outside stays in byte tokens, so an emoji is four tokens and a stream of tokens
cuts through characters.
"""

import collections
import functools
import re
import unicodedata

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)

_SPLIT_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same in the dialect of Python's re, which has no \p: equal on letters, decimal digits, and
# emoji, which is all that the corpus holds.
_SPLIT = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d"
    r"| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_symbols():
    """GPT-2's printable stand-in for each of the 256 bytes, in the order of the byte ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + len(symbols) - len(printable))
    return symbols


_SYMBOL_OF_BYTE = _byte_symbols()
_BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in _SYMBOL_OF_BYTE.items()}


def _to_symbols(piece):
    return tuple(_SYMBOL_OF_BYTE[byte] for byte in piece.encode())


def _merge_pair(symbols, pair):
    merged = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
            # A symbol made now must not join the next one under the same pair.
            merged.append("")
        else:
            merged.append(symbol)
    return tuple(symbol for symbol in merged if symbol)


def learn_merges(text, merges_max):
    """Learns up to `merges_max` merges from `text`, the most frequent pair first."""
    words = collections.Counter(
        _to_symbols(piece) for piece in _SPLIT.findall(text) if piece.isascii()
    )
    merges = []
    while len(merges) < merges_max:
        pairs = collections.Counter()
        for symbols, count in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        if not pairs:
            break
        # The smaller pair wins a tie, so that the result does not depend on the order of words.
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for symbols, count in words.items():
            merged[_merge_pair(symbols, best)] += count
        words = merged
    return merges


class Tokenizer:
    """Byte ids first, then one id per merge, then the special tokens."""

    def __init__(self, merges):
        self.merges = merges
        self._rank = {pair: rank for rank, pair in enumerate(merges)}
        tokens = list(_SYMBOL_OF_BYTE[byte] for byte in sorted(_SYMBOL_OF_BYTE, key=_byte_order))
        tokens += [left + right for left, right in merges]
        self.vocabulary = {token: index for index, token in enumerate(tokens)}
        assert len(self.vocabulary) == len(tokens), "two merges make one token"
        self.special = {token: len(tokens) + i for i, token in enumerate(SPECIAL_TOKENS)}
        self._tokens = tokens
        self._encode_piece = functools.lru_cache(maxsize=None)(self._encode_piece_uncached)

    @property
    def size(self):
        return len(self._tokens) + len(SPECIAL_TOKENS)

    @property
    def eos_id(self):
        return self.special[END_OF_TURN]

    def _encode_piece_uncached(self, piece):
        symbols = _to_symbols(piece)
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda p: self._rank.get(p, len(self._rank)))
            if pair not in self._rank:
                break
            symbols = _merge_pair(symbols, pair)
        return tuple(self.vocabulary[symbol] for symbol in symbols)

    def encode(self, text):
        """Returns the ids of `text`, which holds no special tokens."""
        ids = []
        for piece in _SPLIT.findall(unicodedata.normalize("NFC", text)):
            ids.extend(self._encode_piece(piece))
        return ids

    def decode(self, ids):
        """Returns the text of `ids`; broken UTF-8 shows as U+FFFD, special tokens as nothing."""
        symbols = "".join(self._tokens[i] for i in ids if i < len(self._tokens))
        return bytes(_BYTE_OF_SYMBOL[symbol] for symbol in symbols).decode(errors="replace")

    def to_json(self):
        """Returns the content of tokenizer.json."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        split = {
            "type": "Split",
            "pattern": {"Regex": _SPLIT_REGEX},
            "behavior": "Isolated",
            "invert": False,
        }
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": index, "content": token, **flags, "special": True}
                for token, index in self.special.items()
            ],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.vocabulary,
                "merges": [list(pair) for pair in self.merges],
            },
        }


def _byte_order(byte):
    """Printable bytes come first, as in GPT-2's vocabulary."""
    return ord(_SYMBOL_OF_BYTE[byte])
