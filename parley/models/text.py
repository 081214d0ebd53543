"""Models for token ids: int64 samples of shape [length], in which id 0 is padding."""

from dataclasses import dataclass

from torch import Tensor, nn

from parley.core.errors import InputError
from parley.models.spec import check_positive, check_tokens, models

PADDING = 0
_MOST_LAYERS = 100


class NextCharacter(nn.Module):
    """Embedding, LSTM layers and a dense head on the last position or on each."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, outputs: int, every: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)
        self.every = every

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] ids to [B, outputs], or to [B, outputs, T], the order `cross_entropy` wants, for every position."""
        states, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.head(states if self.every else states[:, -1])
        return logits.transpose(1, 2) if self.every else logits


@models("lstm")
@dataclass(frozen=True)
class Lstm:
    """Next-character LSTM of LEAF, Reddi et al. (2021) and Charles and Konečný; outputs = vocabulary size."""

    embedding: int = 8
    """Width of the character embedding."""
    hidden: int = 256
    """Units of each LSTM layer."""
    layers: int = 2
    """Number of LSTM layers."""
    every: bool = False
    """Predict after every position, outputs [B, vocabulary, T] (Charles and Konečný), not after the last one (LEAF)."""
    vocabulary: int = 0
    """Number of input ids; 0 means as many as outputs."""

    def __post_init__(self) -> None:
        check_positive("lstm", "embedding", self.embedding)
        check_positive("lstm", "hidden", self.hidden)
        check_positive("lstm", "layers", self.layers)
        if self.layers > _MOST_LAYERS:
            raise InputError(f"layers of model 'lstm' must be at most {_MOST_LAYERS}, not {self.layers}.")
        check_positive("lstm", "vocabulary", self.vocabulary or 1)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """For sequences of any length; `shape` is only checked to be one."""
        check_tokens("lstm", shape)
        return NextCharacter(self.vocabulary or outputs, self.embedding, self.hidden, self.layers, outputs, self.every)


class BagOfTokens(nn.Module):
    """The mean embedding of a text's tokens, padding left out, and a dense head."""

    def __init__(self, vocabulary: int, embedding: int, outputs: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.head = nn.Linear(embedding, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] ids to [B, outputs]; a text of padding only has the zero vector as its mean."""
        length = (tokens != PADDING).sum(dim=1, keepdim=True).clamp(min=1)
        # The embedding of the padding id is zero and stays so: it receives no gradient.
        return self.head(self.embed(tokens).sum(dim=1) / length)  # type: ignore[no-any-return]


@models("text-bag")
@dataclass(frozen=True)
class TextBag:
    """Bag-of-embeddings classifier, a small baseline for sentence data such as MultiNLI."""

    vocabulary: int = 10_000
    """Number of token ids, 0 (padding) included."""
    embedding: int = 64
    """Width of the token embedding."""

    def __post_init__(self) -> None:
        check_positive("text-bag", "vocabulary", self.vocabulary)
        check_positive("text-bag", "embedding", self.embedding)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """For texts of any length; `shape` is only checked to be one."""
        check_tokens("text-bag", shape)
        return BagOfTokens(self.vocabulary, self.embedding, outputs)
