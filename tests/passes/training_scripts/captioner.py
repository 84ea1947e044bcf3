"""A projector and an adapter, trained through a language model that is frozen."""

import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.wte = nn.Embedding(16, width)
        self.block = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, 16)

    def forward(self, embeds):
        return self.lm_head(F.gelu(self.block(embeds)))


class Captioner(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.vision = nn.Linear(12, width)
        self.projector = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.adapter = nn.Linear(width, width)
        self.llm = LanguageModel(width)
        self.vision.requires_grad_(False)
        self.llm.requires_grad_(False)

    @torch.no_grad()
    def encode_images(self, images):
        return self.vision(images)

    def adapt(self, tokens):
        return tokens + self.adapter(tokens)

    def forward(self, images, ids):
        features = self.encode_images(images)
        prefix = self.adapt(self.projector(features))
        with torch.no_grad():
            text = self.llm.wte(ids)
        return self.llm(torch.cat([prefix[:, None], text], dim=1))

    @torch.inference_mode()
    def generate(self, images, length=3):
        ids = torch.zeros(images.shape[0], 0, dtype=torch.long)
        for _ in range(length):
            ids = torch.cat([ids, self(images, ids)[:, -1:].argmax(-1)], dim=1)
        return ids


def build():
    return Captioner()


def train(model):
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    for _ in range(3):
        images, ids = torch.randn(4, 12), torch.randint(0, 16, (4, 5))
        logits = model(images, ids)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 16), ids.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.generate(torch.randn(2, 12))
