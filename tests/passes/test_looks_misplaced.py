"""Training code with scopes, leaves and optimizers that look misplaced: all of it is right."""

from __future__ import annotations

import pytest
from verbs import stays

HEAD = """\
import contextlib
import copy
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F


"""

RIGHT = {
    "weight-outside": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        with torch.no_grad():
            z = self.backbone(x)
        return z @ self.weight
""",
    "break": """\
def train(model, loader, test):
    for epoch in range(3):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
        if epoch < 2:
            continue
        torch.set_grad_enabled(False)
        test(model)
        break
""",
    "loss-and-logits": """\
@torch.no_grad()
def evaluate(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits, y), logits


def train(model, opt, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    val_loss, logits = evaluate(model, x, y)
    print(val_loss.item(), logits.shape)
""",
    "half-helper-live-arg": """\
def compute(model, feats, x, y):
    with torch.no_grad():
        base = model.encode(x)
    return F.mse_loss(feats, base)


def train(model, opt, x, y):
    loss = compute(model, model(x), x, y)
    loss.backward()
""",
    "weighting": """\
def weighted(losses, net, x):
    with torch.no_grad():
        weights = net(x).softmax(-1)
    return (weights * losses).sum()


def train(model, net, opt, x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    loss = weighted(losses, net, x)
    loss.backward()
""",
    "class-attr-params": """\
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(4, 4)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def temperature_loss(self, obs):
        with torch.no_grad():
            log_pi = self.pi(obs)
        return -(self.log_alpha * log_pi).mean()


def train(agent, obs, opt):
    loss = agent.temperature_loss(obs)
    loss.backward()
""",
    "module-tau": """\
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.tau = nn.Parameter(torch.tensor(1.0))

    def forward(self, model, x, y):
        with torch.no_grad():
            z = model(x)
        return F.cross_entropy(z / self.tau, y)


def train(model, x, y):
    criterion = Loss()
    loss = criterion(model, x, y)
    loss.backward()
""",
    "calibrate": """\
def temperature_scale(model, x, y, temperature):
    with torch.no_grad():
        logits = model(x)
    return F.cross_entropy(logits / temperature, y)


def calibrate(model, x, y):
    temperature = nn.Parameter(torch.ones(1))
    opt = torch.optim.LBFGS([temperature])
    loss = temperature_scale(model, x, y, temperature)
    loss.backward()
    opt.step()
""",
    "calibrate-default": """\
def temperature_scale(model, x, y, temperature=1.0):
    with torch.no_grad():
        logits = model(x)
    return F.cross_entropy(logits / temperature, y)


def calibrate(model, x, y):
    temperature = nn.Parameter(torch.ones(1))
    opt = torch.optim.LBFGS([temperature])
    loss = temperature_scale(model, x, y, temperature)
    loss.backward()
    opt.step()
""",
    "own-leaf-optimized": """\
def invert(model, target, steps):
    loss = torch.zeros((), requires_grad=True)
    w = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        feats = model(target)
    loss = loss + (w - feats).pow(2).sum()
    loss.backward()
""",
    "switch-eval-forward": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        if not self.training:
            torch.set_grad_enabled(False)
        y = self.a(x)
        torch.set_grad_enabled(True)
        return y
""",
    "switch-in-with": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x)
        with torch.no_grad():
            torch.set_grad_enabled(False)
            n = y.norm()
        return self.b(y) / n
""",
    "wrapper-cond": """\
class M(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.run = torch.no_grad()(self.b) if frozen else self.b

    def forward(self, x):
        return self.run(self.a(x))
""",
    "wrapper-metric": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x)
        self.acc = torch.no_grad()(self.metric)(y)
        return y

    def metric(self, y):
        return y.mean()
""",
    "alias-module": """\
no_gradients = torch.no_grad()


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x)

    @no_gradients
    def predict(self, x):
        return self(x).argmax(-1)
""",
    "adapters-frozen-branch": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.adapter = nn.Linear(4, 4)
        self.llm = nn.Linear(4, 4).requires_grad_(False)

    def adapt(self, x):
        return self.adapter(x)

    def forward(self, x):
        h = self.adapt(self.enc(x))
        with torch.no_grad():
            target = self.llm(h)
        return F.mse_loss(self.llm(h), target)
""",
    "ema-late": """\
def prepare(model):
    opt = torch.optim.Adam(model.parameters())
    model.ema_head = nn.Linear(4, 4)
    model.aux = copy.deepcopy(model.head)
    return opt
""",
    "state-rl": """\
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(4, 4)
        self.hidden = None

    def forward(self, x):
        self.hidden = self.rnn(x, self.hidden)
        return self.hidden


def rollout(policy, env, opt):
    policy.hidden = None
    losses = [policy(env()).sum() for _ in range(5)]
    sum(losses).backward()
""",
    "linear-weight": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        with torch.no_grad():
            z = self.backbone(x)
        return F.linear(z, self.weight)
""",
    "prototype-loss": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.prototypes = nn.Parameter(torch.ones(4, 4))

    def loss(self, x):
        with torch.no_grad():
            z = self.backbone(x)
        return -(z @ self.prototypes.t()).log_softmax(-1).mean()


def train(m, x, opt):
    loss = m.loss(x)
    loss.backward()
    opt.step()
""",
    "soft-prompt": """\
class Prompt(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.prompt = nn.Parameter(torch.zeros(4, 8))

    def forward(self, ids):
        with torch.no_grad():
            embeds = self.model.embed(ids)
        return self.model(torch.cat([self.prompt.expand(2, 4, 8), embeds], 1))
""",
    "deepspeed-eval": """\
def train(engine, loader, evaluate):
    for step, batch in enumerate(loader):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        if step % 10 == 0:
            was = torch.is_grad_enabled()
            torch.set_grad_enabled(False)
            evaluate(engine)
            torch.set_grad_enabled(was)
""",
    "scopes-list": """\
def train(model, x, y, frozen):
    scopes = [torch.no_grad()] if frozen else []
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        out = model.backbone(x)
    loss = F.cross_entropy(model.head(out), y)
    loss.backward()
""",
    "decorator-with-enable": """\
def evaluating(fn):
    @functools.wraps(fn)
    def inner(self, *args):
        self.eval()
        try:
            with torch.no_grad():
                return fn(self, *args)
        finally:
            self.train()
    return inner


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x)

    @evaluating
    def score(self, x, y):
        return F.cross_entropy(self(x), y)


def train(m, x, y, opt):
    loss = F.cross_entropy(m(x), y)
    loss.backward()
    print(m.score(x, y))
""",
    "two-phase-load": """\
def main(model, path, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if path:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = nn.DataParallel(model)
    model = model.cuda()
    return model, optimizer
""",
    "freeze-bn": """\
def main(model):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.1)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eval()
            m.weight.requires_grad = False
    return optimizer
""",
    "detach-stats": """\
def train(model, x, y, opt, meter):
    loss = torch.zeros((), requires_grad=True)
    for name, head in model.heads.items():
        part = F.cross_entropy(head(x), y)
        loss = loss + part
        meter[name] += part.detach()
    loss.backward()
""",
    "indices-under-inference": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        with torch.inference_mode():
            order = x.argsort(-1).tolist()
        return self.head(self.embed(x)[:, order[0]])
""",
    "hier-own-method": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.ema_enc = copy.deepcopy(self.enc)
        self.pred = nn.Linear(4, 4)

    def project(self, x):
        return self.pred(self.enc(x))

    def forward(self, a, b):
        p = self.project(a)
        with torch.no_grad():
            t = self.ema_enc(b)
            q = self.project(b)
        return F.mse_loss(p, t) + F.mse_loss(p, q)
""",
    "sampler-in-forward": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(4, 4)

    def act(self, x):
        return self.policy(x)

    def forward(self, x):
        logits = self.act(x)
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=logits).sample()
        return action, logits.log_softmax(-1).gather(-1, action[:, None])
""",
    "gate": """\
def train(disc, gen, z, real, opt):
    fake = torch.no_grad()(gen)(z)
    loss = F.softplus(disc(fake)).mean() + F.softplus(-disc(real)).mean()
    loss.backward()
    opt.step()
""",
    "half-helper-critic": """\
def td_loss(critic, target, obs, next_obs, r):
    with torch.no_grad():
        y = r + target(next_obs)
    return F.mse_loss(critic(obs), y)


def train(critic, target, batch, opt):
    loss = td_loss(critic, target, *batch)
    loss.backward()
    opt.step()
""",
    "helper-model-default": """\
class Trainer:
    def score(self, x):
        with torch.no_grad():
            return self.reward_model(x)

    def loss(self, x):
        return -(self.policy(x).log_softmax(-1).mean(-1) * self.score(x)).mean()

    def train(self, x):
        loss = self.loss(x)
        loss.backward()
        self.optimizer.step()
""",
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_right_as_it_is(text: str) -> None:
    stays(HEAD + text)
