"""The trainer: runs the graph of a step over batches, evaluates, saves, and goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from minidnn.backends.backend import default_device, training_options
from minidnn.compiler import compile
from minidnn.distributed.group import RankGroup, connect
from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph, Value
from minidnn.graph.plain import plain
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.inputs import Shapes, named_types
from minidnn.layers.layer import Layer
from minidnn.runtime.store import Store
from minidnn.training import checkpoint
from minidnn.training.arguments import check_number, check_whole, pairs
from minidnn.training.arrays import is_on_gpu
from minidnn.training.callbacks.callback import Callback
from minidnn.training.callbacks.writing import CheckpointWriter
from minidnn.training.epochs import FitArguments, Record, run
from minidnn.training.launches import Progress, add, repeat
from minidnn.training.losses import Function, Loss
from minidnn.training.optim.optimizer import Optimizer
from minidnn.training.optim.scaling import SCALE, LossScale
from minidnn.training.step import (
    ALONE,
    Objective,
    Ranks,
    step_graph,
    with_averages,
)
from minidnn.weights.trained import state_name

__all__ = ["Trainer"]

#: Seeds of ranks are so far apart that people do not give one rank's to another.
_SEEDS_APART = 0x9E3779B97F4A7C15 >> 1


class Trainer:
    """Trains a network.

    >>> trainer = md.Trainer(
    ...     net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1, momentum=0.9)
    ... )
    >>> history = trainer.fit(batches, epochs=2, validate=batches)
    >>> net.load_state_dict(trainer.state_dict())

    Args:
        network: any layer.  Its parameters are copied; it stays as it is.
        shape: of the network's input with the batch, as :func:`minidnn.compile` takes it.
        loss: one of :mod:`minidnn.training.losses`, or any function of output and target on
            symbols that gives one number.
        optimizer: one of :mod:`minidnn.training.optim`.
        metrics: what is measured besides, functions like the loss by name; by default what the
            loss suggests.
        targets: shapes and dtypes of the targets, for a loss of one's own whose target is not
            like the output.
        seed: what dropout draws from.
        accumulate: of how many batches gradients are added up for one update.
        steps_per_launch: how many steps :meth:`fit` has a GPU take at once, for networks so small
            that Python is slower.  Losses and states have the same bits; callbacks are told of each
            step, in order, when all of a launch are done, and checkpoints have all of them.  What
            is left over is taken singly.  The CPU and the reference take one step after another.
        average: by what a moving average of the parameters decays, which is evaluated instead of
            them; None for none.
        distributed: whether this process is one of several that train together, started by
            ``minidnn launch``, torchrun, mpirun or srun.  Each takes its own batches of this shape;
            gradients, statistics, losses and measures are the means of all.  On a GPU each has one
            of its own.
        synchronized: whether batch normalization takes its statistics over the batches of all
            ranks, which are of one size, as ``torch.nn.SyncBatchNorm`` does, and not of its own.
        loss_scale: how the loss is scaled, a :class:`minidnn.optim.LossScale`; by default only with
            ``precision="float16"``, whose gradients would vanish or overflow else.
        device, precision, options: as for :func:`minidnn.compile`.  Under ``memory_limit``, a
            number of bytes for states and all values of a step, the backward pass computes again
            what would not fit, with the same bits.  On the CPU, ``accuracy`` is "direct" by
            default: what Winograd's F(4x4) rounds more, steps would add up.

    Raises:
        OutOfMemoryError: a step takes more than ``memory_limit``; it says how much.
        GraphError: what cannot be trained, or an argument, with what would be valid.
        UnsupportedError: the device cannot run the step.
    """

    def __init__(
        self,
        network: Layer,
        shape: Shapes,
        loss: Function,
        optimizer: Optimizer,
        *,
        metrics: Mapping[str, Function] | None = None,
        targets: Sequence[tuple[Sequence[int], str]] | None = None,
        seed: int = 0,
        accumulate: int = 1,
        steps_per_launch: int = 1,
        average: float | None = None,
        distributed: bool = False,
        synchronized: bool = False,
        loss_scale: LossScale | None = None,
        device: str | None = None,
        precision: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(network, Layer):
            raise GraphError(f"network={network!r:.80} is no Layer; valid are layers")
        if not callable(loss):
            raise GraphError(f"loss={loss!r:.80}; valid is a loss of minidnn.losses, or a function")
        if not isinstance(optimizer, Optimizer):
            raise GraphError(f"optimizer={optimizer!r:.80}; valid is one of minidnn.optim")
        check_whole(self, "accumulate", accumulate, 1)
        check_whole(self, "seed", seed, 0)
        check_whole(self, "steps_per_launch", steps_per_launch, 1)
        if steps_per_launch > 1 and (accumulate > 1 or distributed):
            raise GraphError(
                f"steps_per_launch={steps_per_launch}, accumulate={accumulate}, distributed="
                f"{distributed!r:.80}; valid is 1, or more with accumulate=1 and distributed=False"
            )
        if average is not None:
            check_number(self, "average", average, 0, 1)
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise GraphError(
                f"loss_scale={loss_scale!r:.80}; valid is a minidnn.optim.LossScale, or None"
            )
        if type(synchronized) is not bool or synchronized > bool(distributed):
            raise GraphError(
                f"synchronized={synchronized!r:.80}, distributed={distributed!r:.80}; valid is "
                "True with distributed=True, or False"
            )
        types = None if targets is None else [TensorType(tuple(s), d) for s, d in targets]
        suggested = loss.metrics if isinstance(loss, Loss) and targets is None else {}
        self.network = network
        self.objective = Objective(loss, dict(suggested if metrics is None else metrics), types)
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.steps_per_launch = steps_per_launch
        self.average = average
        self.scaling = LossScale() if loss_scale is None and precision == "float16" else loss_scale
        self.progress = Progress()
        #: While callbacks are told of the steps of a launch: how far the states have come.
        self.launched: Progress | None = None
        #: What each epoch measured.
        self.history: list[Record] = []
        #: The loss and the measures of the last batch.
        self.last: Mapping[str, Any] = {}
        #: A callback sets it to end training after the epoch.
        self.stop = False
        #: Why training ends after the running step, a signal's name; None to go on.
        self.halt: str | None = None
        #: Whether Ctrl-C or :attr:`halt` ended the last :meth:`fit`.
        self.interrupted = False
        #: The loader of the epoch, and where it goes on after a checkpoint was read.
        self.loader: Any = None
        self.loader_state: Any = None
        #: During :meth:`fit`: where it goes on behind the batches that were trained on.
        self.place: Any = None
        self.store = Store()
        #: The ranks that train together; None for one process alone.
        self.group: RankGroup | None = None
        options = {**training_options(device or default_device()[0]), **options}
        if distributed:
            device = default_device()[0] if device is None else device
            self.group = connect(device)
            device = f"cuda:{self.group.place.local_rank}" if device == "cuda" else device
        self._ranks = ALONE if self.group is None else Ranks(self.group.size, synchronized)
        self._options: dict[str, Any] = {"device": device, "precision": precision, **options}
        self._programs: dict[Any, tuple[Graph, Executable]] = {}
        self._output_type: TensorType | None = None
        declared = network._declared_inputs()
        named = named_types(type(network).__name__, declared, plain(shape), "float32")
        self._shapes = tuple(type.shape for _, type in named)
        program = self._program("step", self._shapes)[1]
        if steps_per_launch > 1:
            repeat(program, steps_per_launch)
        if "random.seed" in self.store:
            self.store["random.seed"] = np.array(seed)
        self._agree()

    @property
    def rank(self) -> int:
        """This process's number among those that train together; 0 if it is alone."""
        return 0 if self.group is None else self.group.place.rank

    def _agree(self) -> None:
        """All ranks begin with the states of rank 0, and draw from other random numbers."""
        if self.group is None:
            return
        self.group.take_over(self.store, list(self.store))
        if "random.seed" in self.store and self.rank:
            own = int(self.store["random.seed"]) + self.rank * _SEEDS_APART
            self.store["random.seed"] = np.array(own % 2**63)

    @property
    def reached(self) -> Progress:
        """How far the states have come.  Callbacks that are told of a step within a launch of
        several find that step in ``progress``."""
        return self.launched or self.progress

    @property
    def step_program(self) -> Executable:
        """The compiled step."""
        return self._program("step", self._shapes)[1]

    @property
    def loss_scale(self) -> float | None:
        """What the loss is multiplied by just now; None if it is not scaled."""
        return float(self.store[SCALE]) if self.scaling is not None else None

    def explain(self, measure: bool = False) -> str:
        """What a step keeps for its backward pass and what it computes again, by value and in all,
        and what each region is predicted to cost.

        ``measure`` times regions instead, on random inputs, and leaves what is trained as it is.
        UnsupportedError if the device does not time regions.
        """
        from minidnn.report.training import explain_memory

        program = self.step_program
        return f"{program.explain(measure)}\n\n{explain_memory(program.plan)}"

    # One batch

    def step(self, x: Any, target: Any) -> Any:
        """Trains on a batch: one array for each input, or a tuple of them, and the targets.

        Returns the loss before the step, as an array of no axes.  A loss that is not finite
        changes nothing.  GraphError if the batch does not fit.

        On a GPU, arrays that lie there are used as they are, targets without a look at them, and
        the step is waited for when the loss is looked at.
        """
        inputs, shapes = self._inputs(x)
        is_last = (self.progress.batches + 1) % self.accumulate == 0
        graph, program = self._program("step" if is_last else "part", shapes)
        numbers = self.optimizer.numbers(self.progress.steps) if is_last else {}
        targets = self._targets(graph, target, len(inputs), len(numbers))
        if self.group is not None:
            self.group.enter()
        found = program(*inputs, *targets, *(np.asarray(number) for number in numbers.values()))
        self.progress.batches += 1
        self.progress.steps += is_last
        self.last = found
        return found["loss"]

    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> dict[str, float]:
        """The mean loss and measures over batches, without training."""
        sums: dict[str, float] = {}
        samples = 0
        for x, target in pairs("evaluate", batches):
            inputs, shapes = self._inputs(x)
            graph, program = self._program("evaluate", shapes)
            found = program(*inputs, *self._targets(graph, target, len(inputs), 0))
            samples += shapes[0][0]
            add(sums, found, shapes[0][0])
        if self.group is not None:
            names = self._program("step", self._shapes)[0].output_names or ()
            *totals, count = self.group.sum_of([*(sums.get(n, 0.0) for n in names), samples])
            sums, samples = dict(zip(names, totals, strict=True)), int(count)
        if not samples:
            raise GraphError("evaluate: there are no batches; valid is an iterable of at least one")
        return {name: total / samples for name, total in sums.items()}

    def _program(self, kind: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[Graph, Executable]:
        """A graph and its program, compiled when they are first asked for."""
        found = self._programs.get((kind, shapes))
        if found is None:
            if kind == "evaluate":
                graph = self.objective.applied(self.network, list(shapes), "eval")
                graph = graph if self.average is None else with_averages(graph, self.store)
            else:
                graph = step_graph(
                    self.network,
                    list(shapes),
                    self.objective,
                    self.optimizer,
                    share=self.accumulate,
                    last=kind == "step",
                    average=self.average,
                    scaling=self.scaling,
                    ranks=self._ranks,
                )
            store = self.store if graph.states else None
            found = graph, compile(graph, store=store, **self._options)
            self._programs[kind, shapes] = found
        return found

    def _inputs(self, x: Any) -> tuple[list[Any], tuple[tuple[int, ...], ...]]:
        inputs = list(x) if isinstance(x, (tuple, list)) else [x]
        shapes = tuple(tuple(np.shape(each)) for each in inputs)
        if [shape[1:] for shape in shapes] != [shape[1:] for shape in self._shapes] or () in shapes:
            raise GraphError(
                f"x has shapes {', '.join(map(str, shapes))}; valid are "
                f"{', '.join(map(str, self._shapes))}, or another batch"
            )
        return inputs, shapes

    def _targets(self, graph: Graph, target: Any, first: int, numbers: int) -> list[Any]:
        values = graph.inputs[first : len(graph.inputs) - numbers]
        given = list(target) if len(values) > 1 else [target]
        if len(given) != len(values):
            raise GraphError(f"{len(given)} targets given; valid are {len(values)}")
        return [self._target(v, t) for v, t in zip(values, given, strict=True)]

    def _target(self, value: Value, target: Any) -> Any:
        if is_on_gpu(target):
            return target  # to look at its numbers would be to wait for them
        array = np.asarray(target)
        kinds = "iu" if "int" in value.dtype else "f"
        if array.dtype.kind not in kinds or array.shape != value.shape:
            valid = "an int dtype" if kinds == "iu" else "a float dtype"
            raise GraphError(
                f"{value.name} is {array.dtype} of shape {array.shape}; valid is {valid} of shape "
                f"{value.shape}"
            )
        loss = self.objective.loss
        if isinstance(loss, Loss) and self.objective.targets is None:
            loss.check(array, self._output)
        return array if kinds == "f" else array.astype(numpy_dtype(value.dtype), copy=False)

    @property
    def _output(self) -> TensorType:
        if self._output_type is None:
            own = self.network._to_graph(list(self._shapes))
            self._output_type = own.outputs[0].type
        return self._output_type

    # Many batches

    def fit(
        self,
        train: Iterable[tuple[Any, Any]],
        epochs: int,
        *,
        validate: Iterable[tuple[Any, Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        stop_on_nan: bool = True,
    ) -> list[Record]:
        """Trains until ``epochs`` epochs were made in all, those before this call included.

        ``train`` is a list of batches ``(x, target)``, or a loader: an iterable that may have
        ``state()`` and ``restore(state)``.  Ctrl-C ends the epoch: callbacks save, and the history
        is returned; another call goes on from there.  Of several ranks it ends all without saving,
        as they may be at different batches.

        TrainingError if a loss is not finite and ``stop_on_nan``; it names the layer that made it.
        """
        check_whole(self, "epochs", epochs, 0)
        run(self, FitArguments(train, epochs, validate, callbacks, stop_on_nan))
        return self.history

    def place_of_loader(self) -> Any:
        """Where the loader of the epoch goes on; None if it does not say."""
        return self.loader_is_at() if self.place is None else self.place

    def loader_is_at(self) -> Any:
        """Where it is, which may be behind batches that were not trained on yet."""
        state: Callable[[], Any] | None = getattr(self.loader, "state", None)
        return self.loader_state if self.loader_state is not None or state is None else state()

    # What training leaves

    @property
    def measures(self) -> dict[str, Any]:
        """What is measured, by name: the loss and the functions of ``metrics``."""
        return {"loss": self.objective.loss, **self.objective.metrics}

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and statistics, and of their moving averages."""
        with self.store.lock:
            names = [name for name, _ in self.network.named_parameters()]
            names += [state_name("average", name) for name in names]
            return {name: self.store[name].copy() for name in names if name in self.store}

    def take_snapshot(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Sets what :meth:`snapshot` copied."""
        with self.store.lock:
            for name, array in snapshot.items():
                self.store[name] = array

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the network's parameters and statistics by name, as they are evaluated: their
        moving averages, if there are any."""
        with self.store.lock:
            found = {}
            for name, parameter in self.network.named_parameters():
                averaged = state_name("average", name)
                held = averaged if averaged in self.store else name
                if held in self.store:
                    found[name] = self.store[held].astype(numpy_dtype(parameter.dtype))
                else:
                    found[name] = parameter.bind(name)()
            return found

    def save(self, path: str | os.PathLike[str], *, writer: CheckpointWriter | None = None) -> None:
        """Writes a checkpoint, from which training goes on with the same bits.

        It is one safetensors file, whose header has the rest as JSON; it appears complete or not
        at all, and one that was there stays until then.  Of several ranks, which all call this, the
        first writes it.

        With a ``writer``, states are copied, and it writes the file while training goes on.
        """
        if self.rank == 0:
            write = checkpoint.writing(self, path)
            writer.start(write) if writer is not None else write()
        if self.group is not None:
            self.group.sum_of([])  # nobody reads it before it is there

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads a checkpoint of a trainer like this one; WeightsError if it is of another."""
        checkpoint.read(self, path)
        self._agree()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *args: Any, **options: Any) -> Self:
        """A trainer made with these arguments, which goes on from a checkpoint."""
        trainer = cls(*args, **options)
        trainer.restore(path)
        return trainer
