"""Recurrent networks: LSTM (Hochreiter and Schmidhuber, 1997), GRU (Cho et al., 2014), and a translator with attention (Luong et al., 2015)."""

import torch
from torch import Tensor, nn

from bench.wide.registry import Parts, network


@network("recurrence", "LSTM, 10 layers × 100 steps × 256")
def lstm(batch: int) -> Parts:
    return nn.LSTM(256, 256, 10, batch_first=True), torch.randn(batch, 100, 256)


@network("recurrence", "GRU both ways, 4 × 100 × 256")
def gru_both_ways(batch: int) -> Parts:
    model = nn.GRU(256, 256, 4, batch_first=True, bidirectional=True)
    return model, torch.randn(batch, 100, 256)


class Translator(nn.Module):
    """An encoder of 30 words, and a decoder that is given 20."""

    def __init__(self, vocabulary: int = 30_000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.score, self.join = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, answer: Tensor) -> Tensor:
        keys, state = self.encoder(self.source(words))
        x, _ = self.decoder(self.target(answer), state)
        weights = torch.softmax(self.score(x) @ keys.transpose(1, 2), -1)
        return self.head(torch.tanh(self.join(torch.cat([weights @ keys, x], -1))))


@network("recurrence", "translator with attention")
def translator(batch: int) -> Parts:
    words, answer = torch.randint(0, 30_000, (batch, 30)), torch.randint(0, 30_000, (batch, 20))
    return Translator(), words, answer


class FedBack(nn.Module):
    """A decoder of cells, each step of which is fed the attention of the one before: 25 words from 50 frames."""

    def __init__(self, width: int = 512, vocabulary: int = 1000) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.cell = nn.LSTMCell(2 * width, width)
        self.keys, self.query = nn.Linear(width, width), nn.Linear(width, width)
        self.score, self.head = nn.Linear(width, 1), nn.Linear(2 * width, vocabulary)

    def forward(self, frames: Tensor, answer: Tensor) -> Tensor:
        keys, words = self.keys(frames), self.words(answer)
        h = c = context = frames.mean(1)
        out: list[Tensor] = []
        for step in range(answer.shape[1]):
            h, c = self.cell(torch.cat([words[:, step], context], 1), (h, c))
            scores = self.score(torch.tanh(keys + self.query(h)[:, None]))
            context = (torch.softmax(scores, 1) * frames).sum(1)
            out.append(self.head(torch.cat([h, context], 1)))
        return torch.stack(out, 1)


@network("recurrence", "decoder fed with attention, 25 steps")
def listen_and_spell(batch: int) -> Parts:
    """The speller of Chan et al. (2015)."""
    return FedBack(), torch.randn(batch, 50, 512), torch.randint(0, 1000, (batch, 25))
