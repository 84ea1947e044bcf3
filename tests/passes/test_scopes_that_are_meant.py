"""Trainers, losses and models as people write them, with scopes that are meant: nothing to say."""

from __future__ import annotations

import re

import pytest
from verbs import rules, stays

HEAD = """\
import contextlib
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast


"""

ALL = """\
def train_model(model, criterion, optimizer, scheduler, dataloaders, num_epochs=25):
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            for inputs, labels in dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()


class PPO:
    def update(self, rollouts):
        with torch.no_grad():
            next_value = self.agent.get_value(rollouts.next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rollouts.rewards)
            returns = advantages + rollouts.values
        for mb in rollouts.minibatches():
            _, newlogprob, entropy, newvalue = self.agent.get_action_and_value(
                mb.obs, mb.actions
            )
            logratio = newlogprob - mb.logprobs
            ratio = logratio.exp()
            with torch.no_grad():
                approx_kl = ((ratio - 1) - logratio).mean()
            pg_loss = torch.max(-mb.adv * ratio, -mb.adv * ratio.clamp(0.8, 1.2)).mean()
            v_loss = 0.5 * ((newvalue - returns) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
            self.optimizer.step()


def sac(
    actor,
    qf1,
    qf2,
    qf1_target,
    qf2_target,
    data,
    alpha,
    gamma,
    q_optimizer,
    actor_optimizer,
    log_alpha,
    a_optimizer,
):
    with torch.no_grad():
        next_state_actions, next_state_log_pi, _ = actor.get_action(data.next_observations)
        qf1_next_target = qf1_target(data.next_observations, next_state_actions)
        min_qf_next_target = qf1_next_target - alpha * next_state_log_pi
        next_q_value = data.rewards.flatten() + (
            1 - data.dones.flatten()
        ) * gamma * min_qf_next_target.view(-1)
    qf1_a_values = qf1(data.observations, data.actions).view(-1)
    qf_loss = F.mse_loss(qf1_a_values, next_q_value)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()
    with torch.no_grad():
        _, log_pi, _ = actor.get_action(data.observations)
    alpha_loss = (-log_alpha.exp() * (log_pi + 1)).mean()
    a_optimizer.zero_grad()
    alpha_loss.backward()
    a_optimizer.step()


def dqn(q_network, target_network, data, optimizer, gamma):
    with torch.no_grad():
        target_max, _ = target_network(data.next_observations).max(dim=1)
        td_target = data.rewards.flatten() + gamma * target_max * (1 - data.dones.flatten())
    old_val = q_network(data.observations).gather(1, data.actions).squeeze()
    loss = F.mse_loss(td_target, old_val)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def diffusion(
    vae,
    text_encoder,
    unet,
    noise_scheduler,
    train_dataloader,
    accelerator,
    optimizer,
    weight_dtype,
):
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    for step, batch in enumerate(train_dataloader):
        with accelerator.accumulate(unet):
            with torch.no_grad():
                latents = vae.encode(
                    batch["pixel_values"].to(weight_dtype)
                ).latent_dist.sample()
                latents = latents * vae.config.scaling_factor
                encoder_hidden_states = text_encoder(batch["input_ids"], return_dict=False)[0]
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (latents.shape[0],)).long()
            noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
            model_pred = unet(
                noisy_latents, timesteps, encoder_hidden_states, return_dict=False
            )[0]
            loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
            avg_loss = accelerator.gather(loss.repeat(4)).mean()
            accelerator.backward(loss)
            optimizer.step()


def grpo(model, ref_model, inputs, beta):
    per_token_logps = get_per_token_logps(model, inputs)
    with torch.inference_mode():
        if ref_model is not None:
            ref_per_token_logps = get_per_token_logps(ref_model, inputs)
        else:
            with model.disable_adapter():
                ref_per_token_logps = get_per_token_logps(model, inputs)
    per_token_kl = (
        torch.exp(ref_per_token_logps - per_token_logps)
        - (ref_per_token_logps - per_token_logps)
        - 1
    )
    loss = -(torch.exp(per_token_logps - per_token_logps.detach()) - beta * per_token_kl).mean()
    return loss


def get_per_token_logps(model, inputs):
    logits = model(**inputs).logits
    return logits.log_softmax(-1)


class MoCo(nn.Module):
    def __init__(self, base_encoder, dim=128, K=65536):
        super().__init__()
        self.encoder_q = base_encoder(num_classes=dim)
        self.encoder_k = base_encoder(num_classes=dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", torch.randn(dim, K))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * 0.999 + param_q.data * 0.001

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        keys = concat_all_gather(keys)
        self.queue[:, :10] = keys.T

    @torch.no_grad()
    def _batch_shuffle_ddp(self, x):
        x_gather = concat_all_gather(x)
        idx = torch.randperm(4)
        return x_gather[idx], idx

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        q = nn.functional.normalize(q, dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            im_k, idx_unshuffle = self._batch_shuffle_ddp(im_k)
            k = self.encoder_k(im_k)
            k = nn.functional.normalize(k, dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1)
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


@torch.no_grad()
def concat_all_gather(tensor):
    tensors_gather = [torch.ones_like(tensor) for _ in range(2)]
    torch.distributed.all_gather(tensors_gather, tensor, async_op=False)
    return torch.cat(tensors_gather, dim=0)


class HungarianMatcher(nn.Module):
    def __init__(self, cost_class=1):
        super().__init__()
        self.cost_class = cost_class

    @torch.no_grad()
    def forward(self, outputs, targets):
        out_prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
        C = -out_prob[:, targets]
        indices = [linear_sum_assignment(c) for c in C.cpu()]
        return [(torch.as_tensor(i), torch.as_tensor(j)) for i, j in indices]


class Criterion(nn.Module):
    def __init__(self, matcher):
        super().__init__()
        self.matcher = matcher
        self.proj = nn.Linear(3, 3)

    def forward(self, outputs, targets):
        with torch.no_grad():
            indices = self.matcher(outputs, targets)
        loss = F.cross_entropy(self.proj(outputs["logits"]), targets)
        return loss


class VectorQuantize(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.embed = nn.Embedding(n, d)
        self.proj_in = nn.Linear(d, d)
        self.proj_out = nn.Linear(d, d)

    def forward(self, x):
        x = self.proj_in(x)
        with torch.no_grad():
            dist = torch.cdist(x, self.embed.weight)
            ind = dist.argmin(-1)
            quantize = self.embed(ind)
        quantize = x + (quantize - x).detach()
        return self.proj_out(quantize), ind


class HRM(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, d)
        self.L_level = nn.Linear(d, d)
        self.H_level = nn.Linear(d, d)
        self.lm_head = nn.Linear(d, 10)

    def forward(self, carry, batch):
        input_embeddings = self.embed_tokens(batch["inputs"])
        with torch.no_grad():
            z_H, z_L = carry.z_H, carry.z_L
            for _ in range(3):
                z_L = self.L_level(z_L + z_H + input_embeddings)
                z_H = self.H_level(z_H + z_L)
        z_L = self.L_level(z_L + z_H + input_embeddings)
        z_H = self.H_level(z_H + z_L)
        return self.lm_head(z_H)


class AlphaFold(nn.Module):
    def __init__(self):
        super().__init__()
        self.evoformer = nn.Linear(3, 3)
        self.input_embedder = nn.Linear(3, 3)
        self.aux = nn.Linear(3, 3)

    def iteration(self, feats, prevs):
        m = self.input_embedder(feats["x"])
        return self.evoformer(m + prevs)

    def forward(self, batch):
        prevs = None
        num_iters = 3
        for cycle_no in range(num_iters):
            is_final_iter = cycle_no == (num_iters - 1)
            with torch.set_grad_enabled(torch.is_grad_enabled() and is_final_iter):
                prevs = self.iteration(batch, prevs)
        return self.aux(prevs)


class MoE(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])
        self.e_score_correction_bias = nn.Parameter(torch.zeros(n))

    @torch.no_grad()
    def get_topk_indices(self, scores):
        s = scores.view(-1, 8) + self.e_score_correction_bias.unsqueeze(0)
        return torch.topk(s, k=2, dim=-1, sorted=False)[1]

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        idx = self.get_topk_indices(scores)
        w = scores.gather(1, idx)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            with torch.no_grad():
                rows = torch.where(idx == i)
            out[rows[0]] += expert(x[rows[0]]) * w[rows[0], rows[1], None]
        return out


class RotaryEmbedding(nn.Module):
    inv_freq: torch.Tensor

    def __init__(self, config, device=None):
        super().__init__()
        self.rope_init_fn = ROPE_INIT_FUNCTIONS[config.rope_type]
        inv_freq, self.attention_scaling = self.rope_init_fn(config, device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_inv_freq = self.inv_freq

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x, position_ids):
        freqs = (self.inv_freq[None, :, None] @ position_ids[:, None, :].float()).transpose(
            1, 2
        )
        emb = torch.cat((freqs, freqs), dim=-1)
        return (emb.cos() * self.attention_scaling).to(x.dtype), emb.sin().to(x.dtype)


class LIGAN:
    def gradient_penalty(self, D, real, fake):
        alpha = torch.rand(real.size(0), 1)
        interpolates = alpha * real + (1 - alpha) * fake
        interpolates.requires_grad_(True)
        d = D(interpolates)
        g = torch.autograd.grad(d, interpolates, torch.ones_like(d), create_graph=True)[0]
        return ((g.norm(2, dim=1) - 1) ** 2).mean()

    def step(self, G, D, real, opt_d, opt_g):
        z = torch.randn(8, 8)
        with torch.no_grad():
            fake = G(z)
        d_loss = -(D(real).mean() - D(fake).mean()) + self.gradient_penalty(D, real, fake)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()


class LoRALinear(nn.Module):
    def __init__(self, base, r):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.zeros(r, 8))
        self.B = nn.Parameter(torch.zeros(8, r))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        nn.init.kaiming_uniform_(self.A)

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.B @ self.A

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t()


class EMA:
    def __init__(self, model):
        self.module = copy.deepcopy(model).eval()

    def update(self, model):
        with torch.no_grad():
            for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
                e.copy_(0.99 * e + 0.01 * m)


def score_distillation(render, unet, params, opt):
    x = render(params)
    with torch.no_grad():
        noise = torch.randn_like(x)
        noise_pred = unet(x + noise)
    grad = noise_pred - noise
    target = (x - grad).detach()
    loss = 0.5 * F.mse_loss(x, target, reduction="sum")
    loss.backward()
    opt.step()


def self_cond(model, x_t, t, x0, opt):
    cond = torch.zeros_like(x_t)
    if torch.rand(1).item() > 0.5:
        with torch.no_grad():
            cond = model(x_t, cond, t)
    pred = model(x_t, cond, t)
    loss = F.mse_loss(pred, x0)
    loss.backward()


def manual_sgd(w, b, xb, yb):
    for epoch in range(2):
        pred = xb @ w + b
        loss = F.cross_entropy(pred, yb)
        loss.backward()
        with torch.no_grad():
            w -= w.grad * 0.1
            b -= b.grad * 0.1
            w.grad.zero_()
            b.grad.zero_()


def amp(model, scaler: GradScaler, x, y, opt):
    with autocast():
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean()
    return acc


def linear_probe(backbone, head, loader, opt):
    for x, y in loader:
        with torch.no_grad():
            feats = backbone(x)
        loss = F.cross_entropy(head(feats), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def grad_cache(model, x, y):
    with torch.no_grad():
        reps = [model(c) for c in x.split(4)]
    reps = torch.cat(reps).requires_grad_()
    loss = contrastive(reps, y)
    loss.backward()
    cache = reps.grad.split(4)
    for c, g in zip(x.split(4), cache):
        torch.dot(model(c).flatten(), g.flatten()).backward()


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *args):
        ctx.run = run
        ctx.save_for_backward(*args)
        with torch.no_grad():
            out = run(*args)
        return out

    @staticmethod
    def backward(ctx, *grads):
        args = [a.detach().requires_grad_() for a in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*args)
        torch.autograd.backward(out, grads)
        return (None, *(a.grad for a in args))


class Pl(LightningModule):
    def training_step(self, batch, i):
        x, y = batch
        with torch.no_grad():
            t = self.teacher(x)
        return F.mse_loss(self.student(x), t)

    @torch.no_grad()
    def validation_step(self, batch, i):
        return F.cross_entropy(self.student(batch[0]), batch[1])


def pretrained_eval(net, x, y):
    torch.set_grad_enabled(False)
    return F.cross_entropy(net(x), y).item()


class SwAV(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 3)
        self.prototypes = nn.Linear(3, 3)

    @torch.no_grad()
    def distributed_sinkhorn(self, out):
        Q = torch.exp(out / 0.05).t()
        for it in range(3):
            Q /= Q.sum()
        return Q.t()

    def forward(self, x):
        emb = self.backbone(x)
        out = self.prototypes(emb)
        loss = 0
        with torch.no_grad():
            scores = out.detach()
            q = self.distributed_sinkhorn(scores)
        loss -= torch.mean(torch.sum(q * F.log_softmax(out, dim=1), dim=1))
        return loss


class FixMatch:
    def step(self, model, x_weak, x_strong, opt):
        with torch.no_grad():
            probs = model(x_weak).softmax(-1)
            conf, pseudo = probs.max(-1)
            mask = conf.ge(0.95).float()
        loss = (F.cross_entropy(model(x_strong), pseudo, reduction="none") * mask).mean()
        loss.backward()
        opt.step()


class StudentWrap(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.teacher = build(cfg)
        self.student = nn.Linear(3, 3)
        self.freeze_at = cfg.freeze_at

    def forward(self, x):
        if self.freeze_at > 0:
            with torch.no_grad():
                x = self.student(x)
        else:
            x = self.student(x)
        return x


class ModelRunner:
    def __init__(self, config):
        with torch.inference_mode():
            self.model = build(config)
            self.kv_cache = torch.zeros(2, 2)

    @torch.inference_mode()
    def run_model(self, input_ids, positions, is_prefill):
        return self.model.compute_logits(self.model(input_ids, positions))

    @torch.inference_mode()
    def capture_cudagraph(self):
        self.graph_vars = dict(outputs=torch.zeros(2))

    def run(self, seqs):
        logits = self.run_model(seqs.ids, seqs.pos, True)
        return self.sampler(logits)


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()

    @torch.compile
    @torch.no_grad()
    def forward(self, logits, temperatures):
        return (logits / temperatures).softmax(-1).argmax(-1)


class KVCache(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(n))

    @torch.no_grad()
    def update(self, pos, k):
        self.k_cache[pos] = k
        return self.k_cache


class Feature(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model("resnet50", pretrained=True)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        self.net.eval()
        with torch.no_grad():
            f = self.net(x)
        return self.head(f)


class CLIPText(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = CLIPTextModel.from_pretrained("x")
        self.freeze()

    def freeze(self):
        self.transformer = self.transformer.eval()
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, text):
        with torch.no_grad():
            return self.transformer(text).last_hidden_state


class LPIPS(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin0 = nn.Conv2d(3, 3, 1)

    @torch.no_grad()
    def forward(self, a, b):
        return self.lin0((a - b) ** 2).mean()


class Llava(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.vision_tower = build_vision(cfg)
        self.mm_projector = nn.Linear(8, 8)
        self.lm = build_lm(cfg)

    @torch.no_grad()
    def encode_vision(self, images):
        return self.vision_tower(images)

    def forward(self, images, ids):
        feats = self.mm_projector(self.encode_vision(images))
        return self.lm(inputs_embeds=feats, labels=ids)


class VisionTower(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.is_loaded = False
        self.load_model()

    def load_model(self):
        self.vision_tower = CLIPVisionModel.from_pretrained("x")
        self.vision_tower.requires_grad_(False)

    @torch.no_grad()
    def forward(self, images):
        return self.vision_tower(images, output_hidden_states=True).hidden_states[-2]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 3, 1)
        self.head = nn.Conv2d(3, 3, 1)
        self.anchors = torch.zeros(3)

    def forward(self, x, targets=None):
        feats = self.backbone(x)
        out = self.head(feats)
        if self.training:
            with torch.no_grad():
                assigned = self.assign(out, targets)
            return self.loss(out, assigned)
        with torch.no_grad():
            boxes = self.decode(out)
        return boxes

    @torch.no_grad()
    def assign(self, out, targets):
        return (out.sigmoid() - targets).abs()

    def loss(self, out, assigned):
        return F.mse_loss(out, assigned)

    def decode(self, out):
        return out.exp()


class Quantizer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(n, d))
        self.pre = nn.Linear(d, d)

    @torch.no_grad()
    def ema_update(self, x, ind):
        self.codebook.data.lerp_(x.mean(0), 0.1)

    def forward(self, x):
        x = self.pre(x)
        with torch.no_grad():
            ind = torch.cdist(x, self.codebook).argmin(-1)
            if self.training:
                self.ema_update(x, ind)
        q = F.embedding(ind, self.codebook)
        commit = F.mse_loss(x, q.detach())
        return x + (q - x).detach(), commit, ind


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
        self.critic = nn.Linear(3, 1)

    @torch.no_grad()
    def act(self, obs):
        mean = self.net(obs)
        return torch.normal(mean, 1.0), self.critic(obs)

    def forward(self, obs):
        raise NotImplementedError

    def evaluate_actions(self, obs, a):
        return self.net(obs), self.critic(obs)


class BatchNormStats(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.register_buffer("running_mean", torch.zeros(d))

    def forward(self, x):
        x = self.lin(x)
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean(0), 0.1)
        return x - self.running_mean


class Spectral(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.randn(d, d))
        self.register_buffer("u", torch.randn(d))

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(self.w.t() @ self.u, dim=0)
            u = F.normalize(self.w @ v, dim=0)
        sigma = u @ self.w @ v
        return x @ (self.w / sigma).t()


class Wav2Vec(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.feature_extractor = nn.Conv1d(1, 8, 3)
        self.encoder = nn.Linear(8, 8)
        self.freeze_finetune_updates = cfg.n

    def forward(self, x, step):
        ft = self.freeze_finetune_updates <= step
        with torch.no_grad() if not ft else contextlib.ExitStack():
            f = self.feature_extractor(x)
        return self.encoder(f)


class Anchor(nn.Module):
    def __init__(self):
        super().__init__()
        self.rpn = nn.Conv2d(3, 3, 1)
        self.roi = nn.Linear(3, 3)

    def forward(self, feats):
        scores = self.rpn(feats)
        with torch.no_grad():
            proposals = self.generate_proposals(scores)
        return self.roi(proposals), scores

    def generate_proposals(self, scores):
        return scores.topk(5)[0]


class RPNOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.rpn = nn.Conv2d(3, 3, 1)
        self.roi = nn.Linear(3, 3)

    def forward(self, feats):
        scores = self.rpn(feats)
        losses = {}
        self.losses_of(losses, scores)
        with torch.no_grad():
            proposals = self.decode(scores)
        return self.roi(proposals), losses

    def losses_of(self, losses, scores):
        losses["rpn"] = scores.mean()

    def decode(self, scores):
        return scores.exp()


def extract(model, loader):
    torch.set_grad_enabled(False)
    model.eval()
    return [model(x) for x in loader]


class ModelWithCache(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wq = nn.Linear(d, d)
        self.cache = None

    @torch.inference_mode()
    def generate(self, x):
        self.cache = torch.zeros(3)
        for _ in range(3):
            x = self(x)
        return x

    def forward(self, x):
        if self.cache is not None:
            return self.wq(x) + self.cache
        return self.wq(x)


@torch.inference_mode()
def load(path, model):
    model.load_state_dict(torch.load(path))
    for m in model.modules():
        if isinstance(m, nn.Linear):
            m.weight = nn.Parameter(m.weight.to(torch.int8), requires_grad=False)
    return model


class TinyRecursive(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed = nn.Embedding(10, d)
        self.net = nn.Linear(d, d)
        self.head = nn.Linear(d, 10)
        self.q_head = nn.Linear(d, 2)

    def latent(self, x, y, z):
        for _ in range(3):
            z = self.net(x + y + z)
        return self.net(y + z), z

    def forward(self, ids, y, z):
        x = self.embed(ids)
        with torch.no_grad():
            for _ in range(2):
                y, z = self.latent(x, y, z)
        y, z = self.latent(x, y, z)
        return (y.detach(), z.detach()), self.head(y), self.q_head(y)


class DEQ(nn.Module):
    def __init__(self, f, solver):
        super().__init__()
        self.f = f
        self.inject = nn.Linear(3, 3)
        self.solver = solver

    def forward(self, x):
        x = self.inject(x)
        with torch.no_grad():
            z, self.forward_res = self.solver(lambda z: self.f(z, x), torch.zeros_like(x))
        z = self.f(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.f(z0, x)

        def backward_hook(grad):
            g, self.backward_res = self.solver(
                lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad
            )
            return g

        z.register_hook(backward_hook)
        return z


class NeRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.coarse = nn.Linear(3, 4)
        self.fine = nn.Linear(3, 4)

    def forward(self, rays):
        coarse = self.coarse(rays)
        with torch.no_grad():
            t = self.sample_pdf(coarse)
        return self.fine(t)

    def sample_pdf(self, w):
        return torch.searchsorted(w.cumsum(-1), torch.rand(3)).float()


class PPOModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 3)
        self.value_head = nn.Linear(3, 1)
        self.policy = nn.Linear(3, 3)

    def forward(self, x):
        h = self.backbone(x)
        with torch.no_grad():
            v = self.value_head(h)
        return self.policy(h), v


class Detr(nn.Module):
    def __init__(self, matcher):
        super().__init__()
        self.matcher = matcher
        self.class_embed = nn.Linear(3, 3)
        self.bbox_embed = nn.Linear(3, 4)

    def forward(self, hs, targets):
        logits, boxes = self.class_embed(hs), self.bbox_embed(hs).sigmoid()
        indices = self.matcher({"l": logits.detach(), "b": boxes.detach()}, targets)
        loss = F.cross_entropy(logits, targets) + F.l1_loss(boxes, targets)
        with torch.no_grad():
            iou = self.iou(boxes, targets)
        return loss, iou

    def iou(self, a, b):
        return (a - b).abs()


class GatedLinearUnits(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(d, d)
        self.g = nn.Linear(d, d)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().amax()
        return self.w(x / scale) * self.g(x)


class Wrapper(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.proj = nn.Linear(3, 3)
        self.lm = AutoModel.from_pretrained(cfg)

    def forward(self, x, labels=None):
        h = self.proj(x)
        if labels is not None:
            return self.lm(h, labels=labels).loss
        with torch.no_grad():
            return self.lm.generate(inputs_embeds=h)


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x, active):
        out = []
        for i, m in enumerate(self.members):
            with torch.set_grad_enabled(i == active):
                out.append(m(x))
        return torch.stack(out)


class PCGrad:
    def step(self, losses, params):
        grads = []
        for loss in losses:
            self.opt.zero_grad()
            loss.backward(retain_graph=True)
            grads.append([p.grad.clone() for p in params])
        with torch.no_grad():
            for p, g in zip(params, zip(*grads)):
                p.grad = sum(g)


def mixup_teacher(student, teacher, x, y, opt):
    with torch.no_grad():
        mixed = 0.5 * x + 0.5 * x.flip(0)
        soft = teacher(mixed).softmax(-1)
    out = student(mixed)
    loss = F.kl_div(out.log_softmax(-1), soft)
    loss.backward()
    opt.step()


def adversarial(model, x, y, eps):
    x_adv = x.clone().detach().requires_grad_(True)
    loss = F.cross_entropy(model(x_adv), y)
    loss.backward()
    with torch.no_grad():
        x_adv = x_adv + eps * x_adv.grad.sign()
    return x_adv


def style(vgg, content, steps):
    img = content.clone().requires_grad_(True)
    opt = torch.optim.LBFGS([img])
    with torch.no_grad():
        target = vgg(content)

    def closure():
        with torch.no_grad():
            img.clamp_(0, 1)
        opt.zero_grad()
        loss = F.mse_loss(vgg(img), target)
        loss.backward()
        return loss

    opt.step(closure)


def latent_opt(G, w, target):
    with torch.no_grad():
        feats = E(target)
    loss = (w - feats).pow(2).mean()
    loss.backward()


def fisher(model, data):
    for x, y in data:
        with torch.no_grad():
            probs = model(x).softmax(-1)
            label = torch.multinomial(probs, 1).squeeze()
        loss = F.cross_entropy(model(x), label)
        loss.backward()


def lm_rollout(policy, ref, reward_fn, prompts, opt):
    with torch.inference_mode():
        seq = policy.generate(prompts)
        rewards = reward_fn(seq)
    seq = seq.clone()
    rewards = rewards.clone()
    logp = policy(seq).logits.log_softmax(-1)
    loss = -(logp.gather(-1, seq[..., None]).squeeze(-1) * rewards[:, None]).mean()
    loss.backward()
    opt.step()


class Distill(nn.Module):
    def __init__(self, s, t):
        super().__init__()
        self.student = s
        self.t = t
        self.adapt = nn.Linear(3, 3)

    def forward(self, x, labels):
        s = self.student(x)
        feat = self.adapt(s.hidden)
        with torch.no_grad():
            t = self.t(x)
        return F.mse_loss(feat, t.hidden) + F.cross_entropy(s.logits, labels)


def norm_then_clip(model, opt, loss):
    loss.backward()
    with torch.no_grad():
        total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if total > 1:
        for p in model.parameters():
            p.grad.mul_(1 / total)
    opt.step()
"""

ALONE = (
    # transforms of images have no weights
    """
import kornia.augmentation as K


class Transforms(nn.Module):
    def __init__(self):
        super().__init__()
        self.transforms = nn.Sequential(K.RandomHorizontalFlip(p=0.75), K.RandomThinPlateSpline())

    @torch.no_grad()
    def forward(self, x):
        return self.transforms(x)
""",
    """
class DataAugmentation(nn.Module):
    def __init__(self):
        super().__init__()
        self.flip = RandomFlip(0.5)

    @torch.no_grad()
    def forward(self, x):
        return self.flip(x)
""",
    # forward is for inference, training has a method of its own
    """
class Autoencoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, index):
        return F.mse_loss(self.decoder(self.encoder(batch)), batch)
""",
    """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 8)

    def forward(self, x):
        z = self.encoder(x)
        with torch.no_grad():
            return self.decoder(z)

    def score(self, batch):
        return F.mse_loss(self.decoder(self.encoder(batch)), batch)
""",
    """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 8)

    def forward(self, x):
        z = self.encoder(x)
        with torch.no_grad():
            return self.decoder(z)


def step(model, x, optimizer):
    F.mse_loss(model.encoder(x), x).backward()
    optimizer.step()
""",
    # a model that is looked at
    """
from transformer_lens import HookedTransformer

torch.set_grad_enabled(False)
model = HookedTransformer.from_pretrained("gpt2-small")


def loss_fn(logits, labels):
    return F.cross_entropy(logits, labels)


def train_loss(tokens):
    loss = F.cross_entropy(model(tokens), tokens)
    return loss
""",
)

EACH = [
    part
    for part in ALL.split("\n\n\n")
    if "no_grad" in part or "inference_mode" in part or "grad_enabled" in part
]


def name(text: str) -> str:
    found = re.search(r"^(?:def|class) (\w+)", text, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("text", EACH, ids=name)
def test_alone(text: str) -> None:
    stays(f"{HEAD}{text}\n", select=("TRN2",))


@pytest.mark.parametrize("text", ALONE)
def test_on_its_own(text: str) -> None:
    stays(f"{HEAD}{text}", select=("TRN2",))


def test_in_one_file() -> None:
    stays(HEAD + ALL, select=("TRN2",))


# -- weights that are searched ----------------------------------------------------------------------

POLICY = """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def main(flat, noise, opt, x):
    policy = Policy()
    {}
    return policy(x)
"""
BY_VECTOR = "nn.utils.vector_to_parameters(flat + noise, policy.parameters())"
BY_GRAD = """for w, e in zip(policy.parameters(), noise):
        w.grad = -policy(x).mean() * e
    opt.step()"""


@pytest.mark.parametrize("search", [BY_VECTOR, BY_GRAD])
def test_an_evolution_strategy_needs_no_gradient(search: str) -> None:
    stays(POLICY.format(search))


@pytest.mark.parametrize(
    "search",
    [
        f"{BY_VECTOR}\n    policy(x).sum().backward()",
        f"{BY_GRAD}\n    policy(x).sum().backward()",
        "for w in policy.parameters():\n        w.grad = None",
    ],
)
def test_beside_a_backward_the_scope_is_a_fault(search: str) -> None:
    assert "TRN201" in rules(POLICY.format(search))


EXPLAINED = """\
import torch
from torch import nn


class Conditioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    # COMMENT
    @torch.no_grad()
    def forward(self, x):
        return self.proj(x)
"""


@pytest.mark.parametrize(
    "comment",
    [
        "no_grad, NOT inference_mode: FSDP reads the version\n    # counter of what this gives",
        "its weights are frozen",
        "The loss takes what this gives for a constant: no gradient comes back here.",
    ],
)
def test_a_scope_that_a_comment_explains(comment: str) -> None:
    stays(EXPLAINED.replace("COMMENT", comment))


@pytest.mark.parametrize(
    "comment",
    ["@torch.inference_mode()", "TODO: no_grad for now", "no_grad: remove to train", "Projects."],
)
def test_a_comment_that_explains_nothing(comment: str) -> None:
    assert rules(EXPLAINED.replace("COMMENT", comment)) == ["TRN201"]


PREDICTOR = """\
import numpy as np
import torch
from torch import nn


class OCRPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.detector = nn.Conv2d(3, 1, 1)
        self.reader = nn.Linear(4, 4)

    @torch.inference_mode()
    def forward(self, pages):
        maps = self.detector(pages)
        boxes = [(np.asarray(m) > 0.3).astype(np.uint8) for m in maps]
        return self.reader(crops(pages, boxes))
"""


def test_a_pipeline_that_goes_on_with_arrays() -> None:
    stays(PREDICTOR, select=("TRN201",))
    text = PREDICTOR.replace(".astype(np.uint8)", "")
    assert rules(text, select=("TRN201",)) == ["TRN201"]
