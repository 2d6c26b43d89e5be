"""Toy vocabularies for tests of translation."""


class Words:
    """Tokens are pieces of bytes, the longest first; the last two are the end of a text and a special token.

    Characters of which a byte has no token are left out.
    """

    def __init__(self, *pieces: str | bytes, all_bytes: bool = False) -> None:
        """`all_bytes` adds a token for each byte."""
        found = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        found += [bytes([byte]) for byte in range(256)] if all_bytes else []
        self.pieces = list(dict.fromkeys(found))
        self.end = len(self.pieces)
        self.special = self.end + 1
        self.n_vocab = self.end + 2
        self._ids = {piece: token for token, piece in enumerate(self.pieces)}
        self._longest = max(map(len, self.pieces))

    def piece(self, token: int) -> bytes:
        return self.pieces[token] if token < self.end else b""

    def is_end(self, token: int) -> bool:
        return token == self.end

    def fragment(self, text: bytes) -> list[int]:
        rest, tokens = text.decode("utf-8", "ignore").encode(), []
        while rest:
            n = next((n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._ids), 0)
            if n:
                tokens.append(self._ids[rest[:n]])
            rest = rest[n:] if n else rest.decode("utf-8", "ignore")[1:].encode()
        return tokens

    def of(self, *pieces: str | bytes) -> list[int]:
        """The tokens of these pieces."""
        return [self._ids[piece.encode() if isinstance(piece, str) else piece] for piece in pieces]
