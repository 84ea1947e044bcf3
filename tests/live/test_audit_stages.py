"""``trainify.audit``: what one stage is taught by its own loss goes on to the next one, stopped."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

GENERATOR = torch.Generator().manual_seed(3)
X, BOXES = torch.randn(3, 6, 8, generator=GENERATOR), torch.rand(3, 2, 4, generator=GENERATOR)
CLASSES = (torch.rand(3, 6, generator=GENERATOR) > 0.5).float()


class Detector(nn.Module):
    """Chooses two of six tokens, and refines the boxes that it has proposed for them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.features, self.score, self.box = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 4)
        self.position, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.expert = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        memory = self.encoder(x)
        features = self.features(memory)
        scores = self.score(features).squeeze(-1)
        chosen = scores.topk(2, dim=1).indices[..., None]
        boxes = self.box(features).gather(1, chosen.expand(-1, -1, 4))
        queries = features.gather(1, chosen.expand(-1, -1, 8))
        return memory, features, scores, boxes, queries

    def decode(self, memory: Tensor, boxes: Tensor, queries: Tensor) -> Tensor:
        queries = queries + self.position(boxes)
        return self.last(self.attention(queries, memory, memory)[0]) + boxes


class Chosen(Detector):
    def forward(self, x, targets, classes):
        memory, _, scores, boxes, queries = self.stages(x)
        refined = self.decode(memory, boxes.detach(), queries.detach())
        first = F.l1_loss(boxes, targets) + F.binary_cross_entropy_with_logits(scores, classes)
        return F.l1_loss(refined, targets) + first


class Overlap(Detector):
    """Of which the loss is written out, and the terms are weighted."""

    def forward(self, x, targets, classes):
        memory, _, scores, boxes, queries = self.stages(x)
        start = torch.cat([torch.zeros(3, 1, 4), boxes], 1).detach()
        refined = self.decode(memory, start[:, 1:], queries.data)
        losses = {"refined": (refined - targets).abs().mean(), "first": (boxes - targets).abs()}
        losses["first"] = losses["first"].sum() / 24
        losses["scores"] = F.binary_cross_entropy_with_logits(scores, classes)
        return sum(losses[name] * (0.5 if name == "first" else 1.0) for name in losses)


class Refined(Detector):
    """One stage after the other, without a choice."""

    def forward(self, x, targets, classes):
        memory = self.encoder(x)
        boxes = self.box(memory[:, :2])
        refined = self.last(self.position(boxes.detach()))
        return F.mse_loss(boxes, targets) + F.mse_loss(refined, targets)


class Beside(Detector):
    """The boxes of all stages are put into one tensor, of which each loss takes its part."""

    def boxes(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.box(self.encoder(x)[:, :2]).sigmoid()
        start = first.detach()
        second = (self.last(self.position(start)) + start).sigmoid()
        third = self.last(self.position(second.detach())) + start
        return first, second, third

    def forward(self, x, targets, classes):
        boxes = torch.stack(self.boxes(x), dim=1).clamp(max=2.0).transpose(0, 1)
        last, others = boxes[-1], boxes[:-1]
        return F.l1_loss(last, targets) + sum(F.l1_loss(each, targets) for each in others)


class Split(Beside):
    def forward(self, x, targets, classes):
        one, two = torch.cat(self.boxes(x), dim=-1).split([4, 8], dim=-1)
        return F.l1_loss(one, targets) + F.mse_loss(two, targets.repeat(1, 1, 2))


@pytest.mark.parametrize("cls", [Chosen, Overlap, Refined, Beside, Split])
def test_it_is_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, BOXES, CLASSES)
    assert report.ok, str(report)
    assert "gradients are stopped or shaped on purpose at" in report.notes[0]
    assert type(trainify.trainify(cls(), X, BOXES, CLASSES)) is cls


class Untaught(Detector):
    """No loss is about the boxes."""

    def forward(self, x, targets, classes):
        memory, _, _, boxes, queries = self.stages(x)
        refined = self.decode(memory, boxes.detach(), queries)
        return F.l1_loss(refined, targets) + (self.box(memory) * x[..., :4]).mean()


class All(Detector):
    """What is chosen is taught, and what goes on is not chosen."""

    def forward(self, x, targets, classes):
        memory, features, scores, _, _ = self.stages(x)
        first = F.binary_cross_entropy_with_logits(scores, classes)
        refined = self.decode(memory, targets, features.detach()[:, :2])
        return F.l1_loss(refined, targets) + first


class Mixture(Detector):
    """An expert has some of the tokens, and its result the weight that they were chosen by."""

    def forward(self, x, targets, classes):
        memory, _, scores, _, queries = self.stages(x)
        weights = scores.topk(2, dim=1).values.sigmoid()[..., None]
        out = memory[:, :2] + weights * self.expert(queries.detach())
        first = F.binary_cross_entropy_with_logits(scores, classes)
        return F.l1_loss(self.last(out), targets) + first


class OnTop(Detector):
    """What goes on is added to, and a loss is about the sum as well."""

    def forward(self, x, targets, classes):
        boxes = self.box(self.encoder(x)[:, :2])
        refined = boxes + self.last(self.position(boxes.detach()))
        return F.mse_loss(boxes, targets) + F.mse_loss(refined, targets)


class Centered(Detector):
    """A difference from what was given that goes on into layers is no loss."""

    def forward(self, x, targets, classes):
        boxes = self.box(self.encoder(x)[:, :2])
        beside = self.position(boxes - targets).square().mean()
        return F.mse_loss(self.last(self.position(boxes.detach())), targets) + beside


class Penalty(Detector):
    def forward(self, x, targets, classes):
        boxes = self.box(self.encoder(x)[:, :2])
        refined = self.last(self.position(boxes.detach()))
        return (boxes - 1.0).square().mean() + F.mse_loss(refined, targets)


class Mixed(Beside):
    """Layers take both, from the tensor that they were put into."""

    def forward(self, x, targets, classes):
        boxes = torch.stack(self.boxes(x), dim=1)
        mixed = self.last(self.position(boxes[:, :2]))
        return F.l1_loss(boxes[:, 0], targets) + F.l1_loss(mixed[:, 1], targets)


class Summed(Beside):
    def forward(self, x, targets, classes):
        boxes = torch.stack(self.boxes(x), dim=1)
        return F.l1_loss(boxes[:, 0], targets) + F.l1_loss(boxes.sum(1), targets)


class Later(Beside):
    """Of the boxes in one tensor the first ones are not taught."""

    def forward(self, x, targets, classes):
        boxes = torch.stack(self.boxes(x), dim=1)
        beside = self.box(self.encoder(x)).mean()
        return F.l1_loss(boxes[:, 1], targets) + F.l1_loss(boxes[:, 2], targets) + beside


@pytest.mark.parametrize(
    "cls", [Untaught, All, Mixture, OnTop, Centered, Penalty, Mixed, Summed, Later]
)
def test_it_is_not(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, BOXES, CLASSES)
    assert not report.ok, str(report)
    assert {"encoder.0.weight"} <= {*report.missing, *report.wrong}
