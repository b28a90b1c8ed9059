"""The trainer: runs the graph of a step over batches, evaluates, saves, and goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from minidnn.backends.backend import check_not_automatic, default_device, training_options
from minidnn.compiler import compile
from minidnn.distributed.group import RankGroup, connect
from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.graph.types import TensorType, numpy_dtype, plain
from minidnn.layers.arguments import Shapes
from minidnn.layers.build import to_graph
from minidnn.preparation import Preparation
from minidnn.runtime.store import Store
from minidnn.training import checkpoint
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.callbacks.callback import Callback
from minidnn.training.callbacks.checkpoint import CheckpointWriter
from minidnn.training.carried import as_layer
from minidnn.training.epochs import (
    FitArguments,
    Record,
    SetMeasures,
    over_ranks,
    run,
    totalled,
)
from minidnn.training.feeding import Feeding, concatenated
from minidnn.training.launches import Progress, add, public, repeat
from minidnn.training.metrics.metric import Metric
from minidnn.training.objective import Targets, objective_of
from minidnn.training.optim.optimizer import SCALE, LossScale, Optimizer
from minidnn.training.step import (
    ALONE,
    Ranks,
    TrainedParameters,
    step_graph,
    with_averages,
)
from minidnn.weights.trained import state_name

__all__ = ["Trainer"]

#: The distance between the seeds of ranks, too large for a user's seeds to coincide with them.
_SEEDS_APART = 0x9E3779B97F4A7C15 >> 1


class Trainer:
    """Trains a network.

    >>> trainer = md.Trainer(
    ...     net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1, momentum=0.9)
    ... )
    >>> history = trainer.fit(batches, epochs=2, validate=batches)
    >>> net.load_state_dict(trainer.state_dict())

    Args:
        network: any layer, or what :func:`minidnn.compile` takes besides: an ONNX file, a graph, a
            PyTorch module.  Its parameters are copied; it stays as it is.  If it is no layer, its
            constants of more than one element are trained under their names, and
            ``trainer.network`` is a layer with the same outputs, to be saved and compiled.
        shape: of the network's input with the batch, as :func:`minidnn.compile` takes it.
        loss: one of :mod:`minidnn.training.losses`, or any function of output and target on
            symbols that gives one number.  For several outputs, a mapping from their names or a
            sequence in their order, of losses or of pairs of a loss and its factor:
            ``{"main": CrossEntropy(), "aux": (CrossEntropy(), 0.4)}``.  Each has a target of its
            own, in a mapping by the outputs' names or in a tuple; one array is the target of all.
        optimizer: one of :mod:`minidnn.training.optim`.
        metrics: measures by name, besides those that the loss suggests: metrics of
            :mod:`minidnn.metrics`, which are computed over whole epochs, or functions like the
            loss, which are averaged; None leaves out one that the loss suggests.  Those of one of
            several outputs are in a mapping under its name.
        targets: shapes and dtypes of the targets, in order or by name, for a loss of one's own
            whose target is neither like the output nor indices of its classes.  A first axis as
            long as the batch follows the batch.
        seed: of dropout's random numbers.
        accumulate: the number of batches whose gradients are accumulated for one update.
        steps_per_launch: the number of steps that :meth:`fit` has a GPU take in one launch, for
            networks so small that Python is slower.  Losses and states have the same bits;
            callbacks are told of each step, in order, after the launch, and checkpoints have all of
            its steps.  What is left over, and all on the CPU and the reference, is taken singly.
        average: the decay of a moving average of the parameters, which is evaluated instead of
            them; None for none.
        distributed: whether this process is one of several that train together, started by
            ``minidnn launch``, torchrun, mpirun or srun.  Each takes its own batches of this shape;
            gradients, statistics, losses and measures are means over all.  On GPUs, each process
            has one of its own.
        synchronized: whether batch normalization takes its statistics over the batches of all
            ranks, which are of one size, as ``torch.nn.SyncBatchNorm`` does, and not of its own.
        loss_scale: how the loss is scaled, a :class:`minidnn.optim.LossScale`; by default only with
            ``precision="float16"``, whose gradients would vanish or overflow else.
        device, precision, options: as for :func:`minidnn.compile`.  Under ``memory_limit``, a
            number of bytes for states and all values of a step, the backward pass computes again
            what would not fit, with the same bits.  On the CPU, ``accuracy`` is "direct" by
            default: the larger rounding errors of Winograd's F(4x4) would accumulate over steps.

    Raises:
        OutOfMemoryError: a step takes more than ``memory_limit``; it says how much.
        GraphError: what cannot be trained, or an argument, with what would be valid.
        UnsupportedError: the device cannot run the step.
    """

    def __init__(
        self,
        network: Any,
        shape: Shapes | None,
        loss: Any,
        optimizer: Optimizer,
        *,
        metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
        targets: Targets | None = None,
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
        network, shape = as_layer(network, shape)
        if not isinstance(optimizer, Optimizer):
            raise GraphError(f"optimizer={optimizer!r:.80}; valid is one of minidnn.optim")
        check_integer(self, "accumulate", accumulate, 1)
        check_integer(self, "seed", seed, 0)
        if seed >= 2**63:
            raise GraphError(f"Trainer: seed={seed}; valid is an int from 0 to 2**63 - 1")
        check_integer(self, "steps_per_launch", steps_per_launch, 1)
        if steps_per_launch > 1 and (accumulate > 1 or distributed):
            raise GraphError(
                f"steps_per_launch={steps_per_launch}, accumulate={accumulate}, distributed="
                f"{distributed!r:.80}; valid is 1, or more with accumulate=1 and distributed=False"
            )
        if average is not None:
            check_number(self, "average", average, 0, 1)
            if average == 1:
                raise GraphError(
                    f"Trainer: average={average!r}; valid is a number below 1: with 1, averages "
                    "never change"
                )
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise GraphError(
                f"loss_scale={loss_scale!r:.80}; valid is a minidnn.optim.LossScale, or None"
            )
        if type(synchronized) is not bool or synchronized > bool(distributed):
            raise GraphError(
                f"synchronized={synchronized!r:.80}, distributed={distributed!r:.80}; valid is "
                "True with distributed=True, or False"
            )
        self.network = network
        self.objective = objective_of(loss, metrics, targets)
        if steps_per_launch > 1 and (of_sets := self.objective.of_sets):
            raise GraphError(
                f"steps_per_launch={steps_per_launch} with metrics {', '.join(of_sets)}; valid is "
                "1 with metrics of whole sets"
            )
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.steps_per_launch = steps_per_launch
        self.average = average
        self.scaling = LossScale() if loss_scale is None and precision == "float16" else loss_scale
        self.progress = Progress()
        #: While callbacks are told of the steps of a launch: how far the states have come.
        self.launched: Progress | None = None
        #: The record of each epoch: what it measured, by name.
        self.history: list[Record] = []
        #: The loss and the measures of the last batch.
        self.last: Mapping[str, Any] = {}
        #: Whether training ends after the epoch; callbacks set it.
        self.stop = False
        #: The name of the signal that ends training after the running step; None to go on.
        self.halt: str | None = None
        #: Whether Ctrl-C or :attr:`halt` ended the last :meth:`fit`.
        self.interrupted = False
        #: The loader of the epoch, and the state to restore it to after a checkpoint was read.
        self.loader: Any = None
        self.loader_state: Any = None
        #: During :meth:`fit`: the loader's state after the batches that were trained on.
        self.place: Any = None
        self.store = Store()
        #: The ranks that train together; None for one process alone.
        self.group: RankGroup | None = None
        check_not_automatic(precision, "training")
        options = {**training_options(device or default_device()[0]), **options}
        if distributed:
            device = default_device()[0] if device is None else device
            self.group = connect(device)
            device = f"cuda:{self.group.place.local_rank}" if device == "cuda" else device
        self._ranks = ALONE if self.group is None else Ranks(self.group.size, synchronized)
        self._options: dict[str, Any] = {"device": device, "precision": precision, **options}
        self._programs: dict[Any, tuple[Graph, Executable]] = {}
        self.feeding = Feeding(network, plain(shape), self.objective)
        self.measured = SetMeasures(self.objective, self.feeding)
        #: Results of the last epoch's metrics that are arrays, by name.
        self.tables: dict[str, Any] = {}
        self._forms: dict[Any, tuple[TensorType, ...]] = {}
        self.trained = TrainedParameters(network, optimizer)
        self._program("step", self.feeding.shapes)
        if "random.seed" in self.store:
            self.store["random.seed"] = np.array(seed)
        self._agree()

    @property
    def rank(self) -> int:
        """This process's number among those that train together; 0 if it is alone."""
        return 0 if self.group is None else self.group.place.rank

    def _agree(self) -> None:
        """Gives all ranks the states of rank 0, and each a random seed of its own."""
        if self.group is None:
            return
        self.group.take_over(self.store, list(self.store))
        if "random.seed" in self.store and self.rank:
            seed = int(self.store["random.seed"]) + self.rank * _SEEDS_APART
            self.store["random.seed"] = np.array(seed % 2**63)

    @property
    def reached(self) -> Progress:
        """How far the states have come.

        While callbacks are told of the steps of a launch, ``progress`` is that of each step.
        """
        return self.launched or self.progress

    @property
    def step_program(self) -> Executable:
        """The compiled step."""
        return self._program("step", self.feeding.shapes)[1]

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss at present; None if it is not scaled."""
        return float(self.store[SCALE]) if self.scaling is not None else None

    def explain(self, measure: bool = False) -> str:
        """Lists the values that a step keeps for its backward pass and those that it recomputes,
        with totals, and the predicted cost of each region.

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

        On a GPU, arrays in its memory are used as they are, targets without a check of their
        values, and the step is waited for when the loss is read.
        """
        inputs, shapes = self.feeding.inputs(x)
        is_last = (self.progress.batches + 1) % self.accumulate == 0
        targets, forms = self.feeding.targets(target, shapes)
        program = self._program("step" if is_last else "part", shapes, forms)[1]
        numbers = self.numbers(self.progress.steps) if is_last else []
        if self.group is not None:
            self.group.enter()
        self.found = program(*inputs, *targets, *numbers)
        self.progress.batches += 1
        self.progress.steps += is_last
        self.last = public(self.found)
        return self.last["loss"]

    def numbers(self, step: int) -> list[np.ndarray]:
        """The optimizer's numbers for a step, counted from 0, in the order of the inputs."""
        return [np.asarray(number) for _, number in self.trained.numbers(step)]

    def evaluate(self, batches: Iterable[Any]) -> dict[str, Any]:
        """The loss, the measures and the metrics over batches, without training.

        Losses and measures are means over samples, or over what counts of them, as of targets that
        are not ignored; metrics are those of the whole set, and may be arrays.
        """
        sums: dict[str, float] = {}
        samples, measured = 0, SetMeasures(self.objective, self.feeding)
        for x, target in self.feeding.pairs("evaluate", batches):
            inputs, shapes = self.feeding.inputs(x)
            targets, forms = self.feeding.targets(target, shapes)
            results = self._program("evaluate", shapes, forms)[1](*inputs, *targets)
            add(sums, results, shapes[0][0], samples)
            samples += shapes[0][0]
            measured.see(results, targets, shapes)
        if self.group is not None:
            names = self.step_program.interface.output_names or ()
            sums, samples = over_ranks(self.group, sums, samples, public(dict.fromkeys(names)))
            measured.gather(self.group)
        if not samples:
            raise GraphError("evaluate: there are no batches; valid is an iterable of at least one")
        return {**totalled(self.objective, sums, samples), **measured.results()}

    def predict(self, batches: Any) -> Any:
        """The network's outputs for batches, concatenated, without training.

        ``batches`` is an array of any number of samples (a tuple of arrays, or a mapping from
        names, if the network has several inputs), or an iterable of batches as for
        :meth:`evaluate`, whose targets are not looked at, or of inputs alone.  Moving averages take
        the place of parameters, if there are any.  Returns an array, or a tuple or dict of them as
        the network gives it.
        """
        outputs: list[Any] = []
        has_batches = False
        for x in self.feeding.inputs_of(batches):
            has_batches = True
            inputs, shapes = self.feeding.inputs(x)
            if shapes[0][0]:
                outputs.append(self._program("predict", shapes, ())[1](*inputs))
        if not has_batches:
            raise GraphError("predict: there are no batches; valid is an iterable of at least one")
        return concatenated(outputs) if outputs else self.feeding.nothing()

    def _program(
        self,
        kind: str,
        shapes: tuple[tuple[int, ...], ...],
        forms: tuple[TensorType, ...] | None = None,
    ) -> tuple[Graph, Executable]:
        """The graph and the program of a kind for these shapes, compiled at first use.

        Kinds are "step"; "part", a batch whose gradients are accumulated; "evaluate"; "predict".
        """
        if self.trained.has_changed(self.progress.steps):
            self._programs.clear()
        forms = self._forms.get(shapes) if forms is None else forms
        found = self._programs.get((kind, shapes, forms))
        if found is None:
            if kind == "predict":
                graph = to_graph(self.network, list(shapes), states=True)
                graph = graph if self.average is None else with_averages(graph, self.store)
            elif kind == "evaluate":
                graph = self.objective.applied(
                    self.network, list(shapes), "eval", forms=forms, counted=True
                )
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
                    forms=forms,
                    begun=self.trained.begun,
                )
            if forms is None:
                first = len(shapes)
                many = len(self.feeding.target_names)
                forms = tuple(value.type for value in graph.inputs[first : first + many])
                self._forms[shapes] = forms
            store = self.store if graph.states else None
            found = graph, compile(graph, store=store, **self._options)
            self._programs[kind, shapes, forms] = found
            for name in [name for name in self.trained.waiting if name in self.store]:
                self.store[name] = self.trained.waiting.pop(name)
            if kind == "step" and self.steps_per_launch > 1 and shapes == self.feeding.shapes:
                repeat(found[1], self.steps_per_launch)
        return found

    # Many batches

    def fit(
        self,
        train: Iterable[Any],
        epochs: int,
        *,
        validate: Iterable[Any] | None = None,
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
        check_integer(self, "epochs", epochs, 0)
        run(self, FitArguments(train, epochs, validate, callbacks, stop_on_nan))
        return self.history

    def place_of_loader(self) -> Any:
        """The state from which the loader of the epoch goes on; None if it has none."""
        return self.loader_is_at() if self.place is None else self.place

    def loader_is_at(self) -> Any:
        """The loader's own state, which may be ahead of the batches that were trained on."""
        state: Callable[[], Any] | None = getattr(self.loader, "state", None)
        return self.loader_state if self.loader_state is not None or state is None else state()

    # What training leaves

    @property
    def measures(self) -> dict[str, Any]:
        """What is measured, by name: the loss and the functions of ``metrics``."""
        losses = {term.named("loss"): term.loss for term in self.objective.terms}
        return {"loss": None, **losses, **{m.name: m.function for m in self.objective.measures}}

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and statistics, and of their moving averages."""
        with self.store.lock:
            names = [name for name, _ in self.network.named_parameters()]
            names += [state_name("average", name) for name in names]
            return {name: self.store[name].copy() for name in names if name in self.store}

    def take_snapshot(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Restores the arrays that :meth:`snapshot` copied."""
        with self.store.lock:
            for name, array in snapshot.items():
                self.store[name] = array

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the network's parameters and statistics by name, as they are evaluated: their
        moving averages, if there are any."""
        with self.store.lock:
            arrays = {}
            for name, parameter in self.network.named_parameters():
                averaged = state_name("average", name)
                state = averaged if averaged in self.store else name
                if state in self.store:
                    arrays[name] = self.store[state].astype(numpy_dtype(parameter.dtype))
                else:
                    arrays[name] = self.trained.waiting.get(name, parameter.bind(name)())
            return arrays

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        writer: CheckpointWriter | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        """Writes a checkpoint, from which training goes on with the same bits.

        It is one safetensors file, whose header has the rest as JSON; it appears complete or not
        at all, and one that was there stays until then.  Of several ranks, which all call this, the
        first writes it.

        With a ``writer``, states are copied, and it writes the file while training goes on.
        ``preparation`` says how pictures are prepared for its weights.
        """
        measured = copy(self.measured)
        if self.group is not None:
            measured.gather(self.group)
        if self.rank == 0:
            write = checkpoint.writing(self, path, measured.arrays(), preparation)
            writer.start(write) if writer is not None else write()
        if self.group is not None:
            self.group.sum_of([])  # a barrier: no rank reads the file before it is complete

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        parameters_only: bool = False,
        without: str | Sequence[str] = (),
    ) -> None:
        """Reads a checkpoint of a trainer like this one; WeightsError if it is of another.

        With ``parameters_only``, parameters and statistics alone are read, from a checkpoint of any
        optimizer or a file of weights, their moving averages if there are any; ``without`` names
        layers that stay as they are, such as a head for other classes.  Training begins anew.
        """
        if parameters_only:
            checkpoint.read_parameters(self, path, without)
        elif without:
            raise GraphError(f"without={without!r:.80}; valid is it with parameters_only=True")
        else:
            checkpoint.read(self, path)
        self._agree()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *args: Any, **options: Any) -> Self:
        """A trainer made with these arguments, which goes on from a checkpoint."""
        trainer = cls(*args, **options)
        trainer.restore(path)
        return trainer
