"""Programs that change, share, copy and save modules after they were optimized."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional, train
from tests.torch.programs.ways import EAGER, OPTIMIZE


class Tied(nn.Module):
    """A table of embeddings that is the last layer's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.table(index)).relu())


@program(quick=True)
def tied_embeddings(run: Run) -> None:
    net = Tied()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.2)
    for _ in range(3):
        index = run.randint(6, 5)
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(index), index)
        loss.backward()
        optimizer.step()
        run.step(loss, net)


@program()
def untied_after_some_steps(run: Run) -> None:
    net = Tied()
    fast = run.compile(net)
    for step in range(4):
        if step == 2:
            net.head.weight = nn.Parameter(net.head.weight.detach() * 2)
        net.zero_grad()
        y = fast(run.randint(6, 5))
        y.square().sum().backward()
        run.step(y, net)


@program()
def one_layer_called_many_times(run: Run) -> None:
    class Repeats(Around):
        def setup(self) -> None:
            self.cell = nn.Linear(8, 8)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                y = self.cell(y).tanh()
            return y

    net = Repeats()
    train(run, net, run.compile(net), 3)


@program()
def one_module_in_two_places(run: Run) -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    net = nn.Sequential(nn.Linear(4, 8), block, block, nn.Linear(8, 2))
    train(run, net, run.compile(net), 3)


@program()
def weight_shared_with_a_transpose(run: Run) -> None:
    class Autoencoder(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(self.first(x).relu(), self.first.weight.t())

    net = Autoencoder()
    train(run, net, run.compile(net), 3)


@program(quick=True)
def layer_replaced_between_calls(run: Run) -> None:
    net = around(nn.ReLU())
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        if step == 1:
            net[2] = nn.Tanh()
        if step == 2:
            torch.manual_seed(5)
            net[3] = nn.Linear(8, 5).to(run.memory)
        net.zero_grad()
        y = fast(x)
        y.square().sum().backward()
        run.step(y, net)


@program()
def layer_appended_between_calls(run: Run) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        net.append(nn.Sigmoid())
        run.step(fast(x))
        del net[1]
        run.step(fast(x))


@program()
def parameter_replaced_between_calls(run: Run) -> None:
    net = around(nn.ReLU()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        net[0].weight = nn.Parameter(run.randn(8, 4))
        run.step(fast(x))
        net[3].bias.data = run.randn(2)
        run.step(fast(x))
        net[3].weight.copy_(run.randn(2, 8))
        run.step(fast(x))


@program()
def buffer_replaced_between_calls(run: Run) -> None:
    net = around(nn.BatchNorm1d(8)).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        net[2].running_mean = run.randn(8)
        run.step(fast(x))
        net[2].running_var.mul_(3)
        run.step(fast(x))
        net[2].eps = 0.5
        run.step(fast(x))


@program()
def state_loaded_between_calls(run: Run) -> None:
    net = convolutional().eval()
    fast = run.compile(net)
    x = run.randn(2, 1, 5, 5)
    with torch.no_grad():
        run.step(fast(x))
        for factor in (2.0, 0.5):
            state = {
                n: t * factor if t.is_floating_point() else t for n, t in net.state_dict().items()
            }
            net.load_state_dict(state)
            run.step(fast(x), net)
        net.load_state_dict({n: t.clone() for n, t in state.items()}, assign=True)
        run.step(fast(x), net)


@program()
def copied_after_compiling(run: Run) -> None:
    """A copy has weights of its own; so has the copy of an optimized module."""
    net = around(nn.BatchNorm1d(8))
    fast = run.compile(net)
    fast(run.randn(3, 4)).sum().backward()
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    for x in run.batches(3, 3, 4):
        one, two = fast(x), other(x)
        (one.sum() + two.square().sum()).backward()
        run.step(one, two, net, [each.grad for each in other.parameters()])


@program()
def pickled_after_compiling(run: Run) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        whole = fast if run.way in (OPTIMIZE, EAGER) else net
        again = pickle.loads(pickle.dumps(whole))
        run.step(again(x))
        net[0].weight.mul_(2)
        run.step(again(x), fast(x))


@program()
def saved_and_loaded_by_state_dict(run: Run) -> None:
    net, other = convolutional(), convolutional()
    fast, second = run.compile(net), run.compile(other)
    x = run.randn(3, 1, 5, 5)
    fast(x).square().sum().backward()
    second(x)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    run.step(fast.eval()(x), second.eval()(x))


@program()
def initialized_again_by_apply(run: Run) -> None:
    def fill(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.1)
            nn.init.zeros_(module.bias)

    net = around(nn.Sigmoid()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        fast.apply(fill)
        run.step(fast(x))


@program()
def module_that_is_called_by_a_method(run: Run) -> None:
    class Encoder(Around):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x).relu()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encode(x))

    net = Encoder()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x).sum() + fast.encode(x).square().sum()
        y.backward()
        run.step(y, net)


@program()
def optimized_part_inside_a_module(run: Run) -> None:
    class Model(Around):
        def setup(self) -> None:
            self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return self.block(y)

    net = Model().to(run.memory)
    net.block = run.compile(net.block)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(4, 3, 4):
        optimizer.zero_grad()
        y = net(x)
        y.square().mean().backward()
        optimizer.step()
        run.step(y, {n.replace("_orig_mod.", ""): t for n, t in net.state_dict().items()})


@program()
def optimized_twice(run: Run) -> None:
    net = around(nn.BatchNorm1d(8))
    one, two = run.compile(net), run.compile(net)
    for x in run.batches(3, 3, 4):
        (one(x).sum() + two(x).square().sum()).backward()
        run.step(net)


@program()
def two_modules_that_share_a_trunk(run: Run) -> None:
    trunk = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    nets = [nn.Sequential(trunk, nn.Linear(8, count)) for count in (2, 3)]
    fasts = [run.compile(net) for net in nets]
    parameters = {*nets[0].parameters(), *nets[1].parameters()}
    for x in run.batches(3, 3, 4):
        for parameter in parameters:
            parameter.grad = None
        (fasts[0](x).sum() + fasts[1](x).square().sum()).backward()
        run.step(*nets)


@program()
def growing_network(run: Run) -> None:
    """A list of blocks grows while it is trained, as progressive networks do."""

    class Grows(Around):
        def setup(self) -> None:
            self.blocks = nn.ModuleList([nn.Linear(8, 8)])

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                y = y + block(y).tanh()
            return y

    net = Grows()
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        if step == 2:
            torch.manual_seed(7)
            net.blocks.append(nn.Linear(8, 8).to(run.memory))
        net.zero_grad()
        y = fast(x)
        y.square().sum().backward()
        run.step(y, net)


@program()
def pruned_by_a_mask(run: Run) -> None:
    """torch.nn.utils.prune computes the weight in a hook before each call."""
    from torch.nn.utils import prune

    net = around(nn.ReLU())
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        if step == 2:
            prune.remove(net[0], "weight")
        net.zero_grad()
        y = fast(x)
        y.square().sum().backward()
        run.step(y, dict(sorted((n, p.grad) for n, p in net.named_parameters())))


@program()
def low_rank_adapters(run: Run) -> None:
    """LoRA: the layer is frozen, two small ones learn, and are merged for evaluation."""

    class Adapted(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(2, layer.in_features))
            self.up = nn.Parameter(torch.zeros(layer.out_features, 2))
            self.merged = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y if self.merged else y + (x @ self.down.T) @ self.up.T

    net = nn.Sequential(Adapted(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    fast = run.compile(net)
    train(run, net, fast, 3)
    adapted: Any = net[0]
    adapted.layer.weight.data += adapted.up.detach() @ adapted.down.detach()
    adapted.merged = True
    fast.eval()
    with torch.no_grad():
        run.step(fast(run.randn(3, 4)))


@program(share=0.0)
def teacher_forcing_in_a_cell(run: Run) -> None:
    net = nn.LSTMCell(4, 4)
    fast = run.compile(net)
    state = None
    losses = []
    for x in run.batches(4, 3, 4):
        state = fast(x, state)
        losses.append(state[0].square().mean())
    total = torch.stack(losses).sum()
    total.backward()
    run.step(total, state, net)


@program(share=0.0)
def recurrent_layer(run: Run) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(x)[0][:, -1])

    net = Reads()
    train(run, net, run.compile(net), 3, (2, 3, 4))


@program()
def transformer_layer(run: Run) -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    train(run, net, run.compile(net), 3, (2, 3, 4))
