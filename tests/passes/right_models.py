"""Models as repositories have them, right as they stand: nothing of them may be reported.

Each defines a ``Net`` whose ``forward(x)`` takes ``x`` of shape (2, 6, 8), and may define
``use(net, x)`` for what else it does.
"""

MODELS: dict[str, str] = {}

MODELS["rope table that grows"] = """\
class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._set_cos_sin_cache(4)

    def _set_cos_sin_cache(self, seq_len):
        self.max_seq_len_cached = seq_len
        t = torch.arange(seq_len, dtype=self.inv_freq.dtype)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, x):
        if x.shape[1] > self.max_seq_len_cached:
            self._set_cos_sin_cache(x.shape[1])
        return self.cos_cached[: x.shape[1]], self.sin_cached[: x.shape[1]]


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.rotary = Rotary(8)

    def forward(self, x):
        q, k = self.q_proj(x), self.k_proj(x)
        cos, sin = self.rotary(x)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        return (q @ k.transpose(1, 2)).softmax(dim=-1) @ x
"""

MODELS["relative position bias"] = """\
class Net(nn.Module):
    def __init__(self, window=6, heads=2):
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(2 * window - 1, heads))
        coords = torch.arange(window)
        relative = coords[:, None] - coords[None, :]
        relative += window - 1
        self.register_buffer("relative_position_index", relative)
        self.qkv = nn.Linear(8, 24)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * 0.5) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        attn = attn + bias.view(n, n, -1).permute(2, 0, 1).unsqueeze(0)
        return (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
"""

MODELS["batch norm of one's own"] = """\
class Net(nn.Module):
    def __init__(self, dim=8, momentum=0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        if self.training:
            mean = x.mean((0, 1))
            var = x.var((0, 1), unbiased=False)
            with torch.no_grad():
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.lerp_(var, self.momentum)
                self.num_batches_tracked += 1
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight + self.bias
"""

MODELS["statistics of detached values"] = """\
class Net(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("initted", torch.tensor(False))

    def forward(self, x):
        h = self.proj(x)
        batch_mean = h.detach().mean((0, 1))
        if not self.initted:
            self.mean.copy_(batch_mean)
            self.initted.fill_(True)
        self.mean.mul_(0.9).add_(batch_mean, alpha=0.1)
        return h - self.mean
"""

MODELS["codebook by moving averages"] = """\
class Net(nn.Module):
    def __init__(self, dim=8, codes=16, decay=0.99, eps=1e-5):
        super().__init__()
        self.encode = nn.Linear(dim, dim)
        self.decay, self.eps = decay, eps
        embed = torch.randn(dim, codes)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, x):
        x = self.encode(x)
        flatten = x.reshape(-1, x.shape[-1])
        dist = (
            flatten.pow(2).sum(1, keepdim=True)
            - 2 * flatten @ self.embed
            + self.embed.pow(2).sum(0, keepdim=True)
        )
        indices = (-dist).max(1).indices
        onehot = F.one_hot(indices, self.embed.shape[1]).type(flatten.dtype)
        quantize = F.embedding(indices.view(*x.shape[:-1]), self.embed.t())
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            embed_sum = flatten.t() @ onehot
            self.embed_avg.data.mul_(self.decay).add_(embed_sum.data, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            size = (self.cluster_size + self.eps) / (n + 16 * self.eps) * n
            self.embed.data.copy_(self.embed_avg / size.unsqueeze(0))
        return x + (quantize - x).detach()
"""

MODELS["sinusoidal positions"] = """\
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=32):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.positions = PositionalEncoding(8)

    def forward(self, x):
        return self.positions(self.embed(x) * math.sqrt(8))
"""

MODELS["adapter on a quantized base"] = """\
class Net(nn.Module):
    def __init__(self, i=8, o=8, r=2):
        super().__init__()
        weight = torch.randn(o, i)
        scale = weight.abs().amax(dim=1, keepdim=True).clamp_(min=1e-5) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", torch.zeros(o))
        self.lora_a = nn.Parameter(torch.empty(r, i))
        self.lora_b = nn.Parameter(torch.zeros(o, r))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        base = F.linear(x, self.weight.to(x.dtype) * self.weight_scale, self.bias)
        return base + (x @ self.lora_a.t() @ self.lora_b.t()) * 2.0
"""

MODELS["tied weights"] = """\
class Net(nn.Module):
    def __init__(self, vocab=10, d=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.tie_weights()

    def tie_weights(self):
        self.lm_head.weight = self.embed.weight

    def forward(self, x):
        ids = x.sum(-1).abs().long() % 10
        return self.lm_head(self.norm(self.embed(ids)))
"""

MODELS["reset_parameters in place"] = """\
class Net(nn.Module):
    def __init__(self, i=8, o=8):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(o, i))
        self.bias = nn.Parameter(torch.empty(o))
        self.reset_parameters()

    def reset_parameters(self):
        bound = 1 / math.sqrt(self.weight.shape[1])
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            self.weight.mul_(0.5)
            self.bias.zero_()
            self.bias[0] = 1.0

    @torch.no_grad()
    def renormalize(self):
        self.weight.div_(self.weight.norm(dim=1, keepdim=True).clamp_(min=1.0))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def use(net, x):
    net.renormalize()
"""

MODELS["gradient hooks and clipping"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.a.weight.register_hook(lambda grad: grad.mul(0.5))

    def forward(self, x):
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-1, 1))
        return self.b(F.relu(h, inplace=True))


def clip_grad_norm_(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.stack([g.norm() for g in grads]).norm()
    scale = (max_norm / (total + 1e-6)).clamp_(max=1.0)
    for g in grads:
        g.mul_(scale)
    return total


def use(net, x):
    net(x).sum().backward()
    clip_grad_norm_(net.parameters(), 1.0)
"""

MODELS["masks on logits of one's own"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).bool())

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.qkv(x).split(8, dim=-1)
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores.div_(math.sqrt(8))
        scores.masked_fill_(~self.mask[:n, :n], float("-inf"))
        attn = F.softmax(scores, dim=-1)
        attn = attn.masked_fill(attn < 1e-4, 0.0)
        return attn @ v
"""

MODELS["residuals added in place"] = """\
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        residual = x
        x = self.attn(self.norm1(x))
        x += residual
        residual = x
        x = self.mlp(self.norm2(x))
        x += residual
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""

MODELS["activations and dropout in place"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(6, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm1d(6)
        self.conv2 = nn.Conv1d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1, inplace=True)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.drop(self.conv2(out))
        out = F.dropout(out, 0.1, self.training, inplace=True)
        out += identity
        out = self.relu(out)
        return out
"""

MODELS["cache in generate only"] = """\
class Net(nn.Module):
    def __init__(self, vocab=10, d=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.k = nn.Linear(d, d)
        self.out = nn.Linear(d, vocab)
        self.past = None

    def attend(self, h, past=None):
        k = self.k(h)
        if past is not None:
            k = torch.cat((past, k), dim=1)
        return (h @ k.transpose(1, 2)).softmax(-1) @ k, k

    def forward(self, x):
        h = self.embed(x.sum(-1).abs().long() % 10)
        return self.out(self.attend(h)[0])

    @torch.no_grad()
    def generate(self, ids, steps):
        self.past = None
        for _ in range(steps):
            h, self.past = self.attend(self.embed(ids[:, -1:]), self.past)
            probs = self.out(h[:, -1]).softmax(-1)
            probs[:, 0] = 0.0
            ids = torch.cat((ids, torch.multinomial(probs, 1)), dim=1)
        return ids


def use(net, x):
    net.generate(torch.ones(2, 1, dtype=torch.long), 3)
"""

MODELS["static cache for evaluation"] = """\
class Net(nn.Module):
    def __init__(self, d=8, max_len=32):
        super().__init__()
        self.wk, self.wv = nn.Linear(d, d), nn.Linear(d, d)
        self.register_buffer("cache_k", torch.zeros(2, max_len, d), persistent=False)
        self.register_buffer("cache_v", torch.zeros(2, max_len, d), persistent=False)

    def forward(self, x, start_pos=0):
        k, v = self.wk(x), self.wv(x)
        if not self.training:
            end = start_pos + x.shape[1]
            self.cache_k[: x.shape[0], start_pos:end] = k
            self.cache_v[: x.shape[0], start_pos:end] = v
            k, v = self.cache_k[: x.shape[0], :end], self.cache_v[: x.shape[0], :end]
        return (x @ k.transpose(1, 2)).softmax(-1) @ v


def use(net, x):
    with torch.inference_mode():
        net.eval()(x)
    net.train()
"""

MODELS["experts gathered and added"] = """\
class Net(nn.Module):
    def __init__(self, d=8, experts=3, top_k=2):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(experts)])
        self.top_k = top_k

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        probs = F.softmax(self.gate(tokens), dim=1, dtype=torch.float)
        weights, selected = torch.topk(probs, self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        final = torch.zeros_like(tokens)
        mask = F.one_hot(selected, len(self.experts)).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            slot, token = torch.where(mask[i])
            current = expert(tokens[token]) * weights[token, slot, None]
            final.index_add_(0, token, current.to(tokens.dtype))
        return final.view_as(x)
"""

MODELS["scattered outputs"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 6)
        self.value = nn.Linear(8, 8)

    def forward(self, x):
        logits = self.score(x)
        top, index = logits.topk(2, dim=-1)
        sparse = torch.full_like(logits, float("-inf")).scatter_(-1, index, top)
        gates = sparse.softmax(dim=-1)
        out = x.new_zeros(x.shape)
        out.scatter_add_(1, index[..., :1].expand(-1, -1, 8), self.value(x))
        padded = out.new_empty(2, 8, 8)
        padded[:, :6] = out
        padded[:, 6:] = 0.0
        return torch.einsum("bij,bjd->bid", gates, padded[:, :6])
"""

MODELS["sampling"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 12)

    def forward(self, x):
        return self.head(x)


def top_p_filter(logits, top_p=0.9, filter_value=-float("inf")):
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    cumulative = torch.softmax(sorted_logits, dim=-1).cumsum(dim=-1)
    remove = cumulative > top_p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    indices = remove.scatter(1, sorted_indices, remove)
    logits[indices] = filter_value
    return logits


def sample(net, x, temperature=0.7):
    with torch.no_grad():
        logits = net(x)[:, -1].div_(temperature)
        probs = torch.softmax(top_p_filter(logits), dim=-1)
        noise = torch.empty_like(probs).exponential_(1)
        return probs.div_(noise).argmax(dim=-1)


def use(net, x):
    sample(net, x)
"""

MODELS["beam search"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, x):
        return self.head(self.embed(x.sum(-1).abs().long() % 12))

    @torch.no_grad()
    def beam_search(self, ids, beams=2, steps=3):
        scores = torch.zeros(ids.shape[0], beams)
        scores[:, 1:] = -1e9
        ids = ids.unsqueeze(1).repeat(1, beams, 1)
        for _ in range(steps):
            logp = F.log_softmax(self.head(self.embed(ids[..., -1])), dim=-1)
            logp[..., 0] = -1e4
            logp += scores.unsqueeze(-1)
            scores, index = logp.flatten(1).topk(beams, dim=-1)
            beam, token = index // 12, index % 12
            ids = ids.gather(1, beam.unsqueeze(-1).expand(-1, -1, ids.shape[-1]))
            ids = torch.cat((ids, token.unsqueeze(-1)), dim=-1)
        return ids


def use(net, x):
    net.beam_search(torch.ones(2, 1, dtype=torch.long))
"""

MODELS["optimizers by hand"] = """\
class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                correction = 1 - beta2 ** state["step"]
                denom = (exp_avg_sq.sqrt() / math.sqrt(correction)).add_(group["eps"])
                p.addcdiv_(exp_avg, denom, value=-group["lr"] / (1 - beta1 ** state["step"]))


class OldAdagrad(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.data
                sums = self.state[p].setdefault("sum", torch.zeros_like(p.data))
                sums.addcmul_(grad, grad, value=1)
                std = sums.sqrt().add_(1e-10)
                p.data.addcdiv_(grad, std, value=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.fc(x))


def use(net, x):
    for kind in (Adam, OldAdagrad):
        optimizer = kind(net.parameters())
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
"""

MODELS["weight norm"] = """\
class Net(nn.Module):
    def __init__(self, i=8, o=8):
        super().__init__()
        weight = torch.empty(o, i)
        nn.init.kaiming_normal_(weight)
        self.weight_g = nn.Parameter(weight.norm(dim=1, keepdim=True))
        self.weight_v = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(o))

    @property
    def weight(self):
        return self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)

    @torch.no_grad()
    def data_init(self, x):
        out = F.linear(x, self.weight).flatten(0, 1)
        scale = out.std(0).add_(1e-6).reciprocal_()
        self.weight_g.mul_(scale[:, None])
        self.bias.copy_(-out.mean(0) * scale)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def use(net, x):
    net.data_init(x)
"""

MODELS["spectral norm"] = """\
class Net(nn.Module):
    def __init__(self, i=8, o=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))
        self.register_buffer("weight_u", F.normalize(torch.randn(o), dim=0))
        self.register_buffer("weight_v", F.normalize(torch.randn(i), dim=0))

    def compute_weight(self):
        u, v = self.weight_u, self.weight_v
        if self.training:
            with torch.no_grad():
                v = F.normalize(torch.mv(self.weight.t(), u), dim=0, out=v)
                u = F.normalize(torch.mv(self.weight, v), dim=0, out=u)
                u, v = u.clone(), v.clone()
        sigma = torch.dot(u, torch.mv(self.weight, v))
        return self.weight / sigma

    def forward(self, x):
        return F.linear(x, self.compute_weight())
"""

MODELS["functions with a backward"] = """\
class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.sigmoid(x)
        out.mul_(x)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        grad = (1 - sigmoid).mul_(x).add_(1).mul_(sigmoid)
        return grad.mul_(grad_output)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return Round.apply(SwishFunction.apply(self.fc(x)) * 4) / 4
"""

MODELS["diffusion schedule and time embedding"] = """\
def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
    freqs.mul_(1.0)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class Net(nn.Module):
    def __init__(self, steps=10):
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, steps)
        alphas = torch.cumprod(1 - betas, dim=0)
        self.register_buffer("sqrt_alphas", alphas.sqrt())
        self.register_buffer("sqrt_one_minus", (1 - alphas).sqrt())
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.net = nn.Linear(8, 8)

    def forward(self, x):
        t = torch.randint(0, 10, (x.shape[0],))
        noise = torch.randn_like(x)
        noisy = self.sqrt_alphas[t, None, None] * x + self.sqrt_one_minus[t, None, None] * noise
        sigma = torch.randn(x.shape[0]).mul_(1.2).exp_()
        weight = sigma.reciprocal().add_(1.0)
        h = self.net(noisy) + self.time(timestep_embedding(t, 8))[:, None]
        return (h - noise) * weight[:, None, None]
"""

MODELS["recurrent states"] = """\
class Net(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.d = d
        self.inp, self.decay = nn.Linear(d, d), nn.Parameter(torch.zeros(d))
        self.cell = nn.GRUCell(d, d)
        self.hidden = None

    def init_hidden(self, batch):
        self.hidden = torch.zeros(batch, self.d)

    def forward(self, x):
        self.init_hidden(x.shape[0])
        state = x.new_zeros(x.shape[0], self.d)
        outputs = []
        for t in range(x.shape[1]):
            state = state * torch.sigmoid(self.decay) + self.inp(x[:, t])
            self.hidden = self.cell(state, self.hidden)
            outputs.append(self.hidden)
        return torch.stack(outputs, dim=1)
"""

MODELS["memory of earlier segments"] = """\
class Net(nn.Module):
    def __init__(self, d=8, mem_len=6):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.mem_len = mem_len
        self.mems = None

    def _update_mems(self, h):
        with torch.no_grad():
            cat = h if self.mems is None else torch.cat([self.mems, h], dim=1)
            self.mems = cat[:, -self.mem_len :].detach()

    def forward(self, x):
        context = x if self.mems is None else torch.cat([self.mems, x], dim=1)
        q = self.qkv(x)[..., :8]
        k, v = self.qkv(context)[..., 8:].chunk(2, dim=-1)
        self._update_mems(x)
        return (q @ k.transpose(1, 2)).softmax(-1) @ v
"""

MODELS["teacher and average of weights"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.register_buffer("center", torch.zeros(8))
        self.register_buffer("queue", F.normalize(torch.randn(8, 16), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def update(self, momentum=0.99):
        for p, t in zip(self.online.parameters(), self.target.parameters()):
            t.data.mul_(momentum).add_(p.data, alpha=1 - momentum)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        self.queue[:, self.ptr : self.ptr + keys.shape[0]] = keys.T
        self.ptr = (self.ptr + keys.shape[0]) % 16

    def forward(self, x):
        student = self.online(x).mean(1)
        with torch.no_grad():
            teacher = self.target(x).mean(1)
            self.center.mul_(0.9).add_(teacher.mean(0), alpha=0.1)
        self._dequeue_and_enqueue(teacher)
        logits = student @ self.queue.clone().detach()
        return -(F.softmax(teacher - self.center, dim=-1) * student.log_softmax(-1)).sum(-1) + (
            logits.logsumexp(-1)
        )


def use(net, x):
    net.update()
"""

MODELS["label smoothing"] = """\
class LabelSmoothing(nn.Module):
    def __init__(self, size, padding_idx, smoothing=0.1):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.size, self.padding_idx = size, padding_idx
        self.confidence, self.smoothing = 1.0 - smoothing, smoothing
        self.true_dist = None

    def forward(self, x, target):
        true_dist = x.data.clone()
        true_dist.fill_(self.smoothing / (self.size - 2))
        true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        true_dist[:, self.padding_idx] = 0
        mask = torch.nonzero(target.data == self.padding_idx)
        if mask.dim() > 0:
            true_dist.index_fill_(0, mask.squeeze(-1), 0.0)
        self.true_dist = true_dist
        return self.criterion(x, true_dist.clone().detach())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(8, 12)
        self.loss = LabelSmoothing(12, 0)

    def forward(self, x):
        logp = F.log_softmax(self.generator(x), dim=-1)
        return self.loss(logp.reshape(-1, 12), torch.arange(12))
"""

MODELS["metrics in the step"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("confusion", torch.zeros(4, 4))

    def forward(self, x):
        return self.fc(x)


def accuracy(logits, target):
    probs = torch.softmax(logits.detach(), dim=-1)
    probs.clamp_(min=1e-6)
    entropy = probs.log().mul_(probs).sum(-1).neg_()
    return (probs.argmax(-1) == target).float().mean().item(), entropy.mean().item()


def focal_loss(logits, target, gamma=2.0):
    logp = F.log_softmax(logits, dim=-1)
    pt = logp.exp().detach()
    pt.neg_().add_(1.0).pow_(gamma)
    return F.nll_loss(pt * logp, target)


def use(net, x):
    target = torch.zeros(12, dtype=torch.long)
    logits = net(x).flatten(0, 1)
    loss = focal_loss(logits, target)
    loss.backward()
    accuracy(logits, target)
    with torch.no_grad():
        net.confusion.index_put_((target, logits.argmax(-1)), torch.ones(12), accumulate=True)
"""

MODELS["masks and tables that are kept"] = """\
_MASKS = {}


def causal_mask(n):
    return _MASKS.setdefault(n, torch.triu(torch.full((n, n), float("-inf")), diagonal=1))


@functools.lru_cache(maxsize=None)
def alibi(n):
    bias = torch.zeros(n, n)
    for i in range(n):
        bias[i, : i + 1] = torch.arange(i + 1) - i
    return bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.slopes = nn.Parameter(torch.ones(1))

    def forward(self, x):
        h = self.proj(x)
        scores = h @ h.transpose(1, 2)
        scores += causal_mask(x.shape[1])
        scores += self.slopes * alibi(x.shape[1])
        return scores.softmax(-1) @ h
"""

MODELS["lists that hold no weights"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = []
        for i in range(2):
            stage = nn.Linear(8, 8)
            self.add_module(f"stage{i}", stage)
            self.stages.append(stage)
        self.criteria = [nn.MSELoss(), nn.L1Loss()]
        self.activations = dict(relu=nn.ReLU(), gelu=nn.GELU())
        self.names = tuple(f"stage{i}" for i in range(2))
        self.heads = nn.ModuleDict({name: nn.Linear(8, 2) for name in ("a", "b")})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])

    def forward(self, x):
        for name, scale in zip(self.names, self.scales):
            x = self.activations["gelu"](getattr(self, name)(x)) * scale
        y = sum(head(x) for head in self.heads.values())
        return sum(criterion(y, torch.zeros_like(y)) for criterion in self.criteria)
"""

MODELS["expert weights stacked for serving"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.qk_weight = None

    def fuse_for_inference(self):
        self.qk_weight = torch.cat([self.q.weight.data, self.k.weight.data])
        self.qk_bias = torch.cat([self.q.bias.data, self.k.bias.data])

    def forward(self, x):
        if self.qk_weight is not None and not self.training:
            q, k = F.linear(x, self.qk_weight, self.qk_bias).chunk(2, dim=-1)
        else:
            q, k = self.q(x), self.k(x)
        return q @ k.transpose(1, 2)


def use(net, x):
    net.eval()
    net.fuse_for_inference()
    with torch.no_grad():
        net(x)
    net.train()
"""

MODELS["layers by hand"] = """\
class Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(8)
        self.layers = nn.ModuleList([Linear(8, 8) for _ in range(2)])
        self.heads = nn.ModuleDict(dict(a=Linear(8, 2), b=Linear(8, 2)))
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(self.norm(x)))
        x = x * sum(self.scales)
        return self.heads["a"](x) + self.heads["b"](x)
"""

MODELS["a list with one place per speaker"] = """\
class Net(nn.Module):
    def __init__(self, speakers=2):
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(8, 8) for _ in range(speakers))
        self.shared = nn.Linear(8, 8)
        self.after_norm = nn.LayerNorm(8)

    def forward(self, x):
        outs, lengths = [None] * len(self.own), [None] * len(self.own)
        for i in range(len(self.own)):
            outs[i], lengths[i] = self.own[i](x), x.shape[1]
            outs[i] = self.shared(outs[i])
            outs[i] = self.after_norm(outs[i])
        return torch.stack(outs, dim=1)
"""

MODELS["tables filled with out="] = """\
class Net(nn.Module):
    def __init__(self, dim=8, length=6):
        super().__init__()
        self.dim = dim
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("relative", torch.empty(length, dim), persistent=False)
        self.register_buffer("absolute", torch.empty(length, dim), persistent=False)
        self.reset_non_persistent_buffers()

    def reset_non_persistent_buffers(self):
        steps = torch.arange(self.relative.shape[0], dtype=torch.float32)
        indices = torch.arange(0, self.dim, step=2, dtype=torch.float32)
        freqs = self.init_freqs(indices)
        freqs = torch.outer(steps, freqs)
        flipped = freqs.flip([0])
        torch.sin(flipped, out=self.relative[:, 0::2])
        torch.cos(freqs[1:], out=self.relative[1:, 1::2])
        _fill(self.absolute, self.dim, steps)

    def init_freqs(self, indices):
        return torch.exp(indices * -math.log(10000.0) / self.dim)

    def forward(self, x):
        return self.proj(x + self.relative + self.absolute)


def _fill(table: torch.Tensor, dim: int, steps: torch.Tensor, correction: int = 1) -> None:
    half = dim // 2
    left = table[:, :half]
    indices = torch.arange(half, dtype=steps.dtype)
    freqs = torch.exp(indices * -math.log(10000.0) / (half - correction))
    torch.outer(steps, freqs, out=left)
    table[:, half:].copy_(left)
    left.sin_()
"""

MODELS["in place only where nothing learns"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        sim = self.proj(x) @ x.mT
        if sim.dtype == torch.float16:
            conf = F.softmax(sim, 1) * F.softmax(sim, 2)
        else:
            conf = F.softmax(sim, 2)
            if sim.requires_grad:
                col = torch.exp(sim - sim.amax(dim=1, keepdim=True))
                conf = col / col.sum(dim=1, keepdim=True) * conf
            else:
                col = sim.sub_(sim.amax(dim=1, keepdim=True)).exp_()
                conf.mul_(col.div_(col.sum(dim=1, keepdim=True)))
        conf.masked_fill_(torch.zeros(6, 6, dtype=torch.bool), 0.0)
        return conf
"""

MODELS["transitions between states"] = """\
class Net(nn.Module):
    def __init__(self, neg_inf=-1e5):
        super().__init__()
        self.neg_inf = neg_inf
        self.emit = nn.Linear(8, 6)

    def transitions(self, lengths):
        size = int(lengths.max())
        moves = torch.cat((torch.zeros([size - 1, 1]), torch.eye(size - 1)), 1)
        moves = torch.cat((moves, torch.zeros([1, size])), 0)
        probs = (moves + torch.eye(size)).reshape(1, size, size)
        probs = probs.repeat(len(lengths), 1, 1).to(lengths.device)
        mask = torch.arange(size)[None, :] < lengths[:, None]
        mask = mask.unsqueeze(2).expand(-1, -1, size)
        probs = probs * (mask & mask.permute(0, 2, 1)).float()
        probs = torch.where(probs == 1, probs, torch.tensor(-float("Inf")))
        probs = torch.nn.functional.log_softmax(probs, dim=2)
        probs[probs == -float("Inf")] = self.neg_inf
        return probs

    def forward(self, x):
        return self.emit(x) + self.transitions(torch.tensor([6, 6]))
"""

MODELS["buffers that a caller may give"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.register_buffer("weights", torch.ones(6))
        self.register_buffer("back", torch.tensor([0, 0, 1, 2, 3, 4]))

    def forward(self, x, out=None):
        x = self.mix(x)
        current = torch.arange(6)
        score = torch.zeros(6)
        while (current != 0).any():
            score = score + self.weights[current]
            torch.where(current != 0, self.back[current], current, out=current)
        if out is not None:
            torch.mul(x, 2.0, out=out)
            return out
        return x * score.sum()

    @classmethod
    def replace_states(cls, src_states, dst_states, mask):
        torch.where(mask, src_states[0], dst_states[0], out=dst_states[0])


def use(net, x):
    with torch.no_grad():
        net(x, out=torch.empty_like(x))
        Net.replace_states((x, x), (x.clone(), x), x > 0)
"""

MODELS["a step beside a forward"] = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Linear(8, 8)

    def forward(self, x):
        return self.kernel(x).cumsum(1)

    @torch.no_grad()
    def forward_state(self, u, state):
        return self.kernel(u) + state


def use(net, x):
    net.forward_state(x[:, 0], torch.zeros(2, 8))
"""
