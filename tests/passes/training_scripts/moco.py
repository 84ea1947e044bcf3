"""Contrastive learning with a queue of keys and a momentum encoder."""

import torch
import torch.nn.functional as F
from torch import nn


class MoCo(nn.Module):
    def __init__(self, dim=8, K=32, m=0.99, T=0.07):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, dim))
        self.encoder_k = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, dim))
        for param_q, param_k in zip(
            self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True
        ):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(
            self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True
        ):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + batch_size] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            shuffle = torch.randperm(im_k.shape[0])
            k = F.normalize(self.encoder_k(im_k[shuffle]), dim=1)
            k = k[torch.argsort(shuffle)]
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


def build():
    return MoCo()


def train(model):
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    top1 = []
    for _ in range(3):
        x = torch.randn(8, 6)
        output, target = model(im_q=x + 0.1 * torch.randn_like(x), im_k=x)
        loss = criterion(output, target)
        with torch.no_grad():
            top1.append((output.argmax(1) == target).float().mean().item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return top1
