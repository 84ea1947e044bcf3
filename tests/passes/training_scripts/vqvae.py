"""VQ-VAE: a straight-through estimator, codebook and commitment losses."""

import torch
import torch.nn.functional as F
from torch import nn


class VectorQuantizer(nn.Module):
    def __init__(self, codes=4, width=4, beta=0.25):
        super().__init__()
        self.embedding = nn.Embedding(codes, width)
        self.beta = beta

    def forward(self, z):
        with torch.no_grad():
            distances = torch.cdist(z, self.embedding.weight)
            indices = distances.argmin(dim=-1)
        z_q = self.embedding(indices)
        loss = F.mse_loss(z_q, z.detach()) + self.beta * F.mse_loss(z_q.detach(), z)
        z_q = z + (z_q - z).detach()
        counts = torch.bincount(indices.flatten(), minlength=4).float()
        probs = counts / counts.sum()
        perplexity = torch.exp(-(probs * (probs + 1e-10).log()).sum())
        return z_q, loss, perplexity, indices


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.quantizer = VectorQuantizer()
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        z_q, vq_loss, perplexity, _ = self.quantizer(self.encoder(x))
        return self.decoder(z_q), vq_loss, perplexity

    @torch.no_grad()
    def encode_indices(self, x):
        return self.quantizer(self.encoder(x))[-1]


def build():
    return VQVAE()


def train(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        x = torch.randn(32, 8)
        recon, vq_loss, perplexity = model(x)
        recon_loss = F.mse_loss(recon, x)
        loss = recon_loss + vq_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(recon_loss.item(), vq_loss.item(), perplexity.item())
    return model.encode_indices(torch.randn(2, 8))
