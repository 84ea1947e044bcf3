"""A recurrent model that keeps its state from batch to batch, cut off after each."""

import torch
import torch.nn.functional as F
from torch import nn


class CharRNN(nn.Module):
    def __init__(self, vocabulary=10, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.state = None

    def forward(self, ids):
        out, (h, c) = self.rnn(self.embed(ids), self.state)
        self.state = (h.detach(), c.detach())
        return self.decoder(out)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def build():
    return CharRNN()


def train(model, chunks=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    text = torch.randint(0, 10, (4, 5 * chunks + 1))
    total = 0.0
    for i in range(chunks):
        source, target = text[:, 5 * i : 5 * i + 5], text[:, 5 * i + 1 : 5 * i + 6]
        output = model(source)
        loss = F.cross_entropy(output.reshape(-1, 10), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
    hidden = model.state
    for _ in range(2):
        hidden = repackage_hidden(hidden)
        out, hidden = model.rnn(model.embed(text[:, :5]), hidden)
        loss = F.cross_entropy(model.decoder(out).reshape(-1, 10), text[:, 1:6].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return total / chunks
