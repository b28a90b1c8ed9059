"""Faults of what captures PyTorch's code, and of what runs it piece by piece."""

from __future__ import annotations

from .fault import Fault

_PROGRAMS = "tests/torch/programs/test_programs.py"
_ENGINE = "minidnn/acceleration"
_FRONTEND = "minidnn/frontends/torch"

FAULTS = (
    Fault(
        "other memory of a weight is not noticed",
        f"{_ENGINE}/watch.py",
        '            and array("Q", map(_ADDRESS, self._tensors)) == self._addresses\n',
        "",
        ("tests/torch/test_changes.py",),
    ),
    Fault(
        "what a network writes to is not written",
        f"{_ENGINE}/program.py",
        "                copy_each(*map(list, zip(*quiet, strict=True)))\n",
        "                pass\n",
        (_PROGRAMS, "tests/torch/test_inplace.py"),
    ),
    Fault(
        "eager counters of writes stay what they were",
        f"{_ENGINE}/program.py",
        "                add_each(counted, 1)\n",
        "                pass\n",
        (_PROGRAMS, "tests/torch/test_trained.py"),
    ),
    Fault(
        "memory that is written to and read elsewhere is computed on",
        f"{_ENGINE}/program.py",
        "            if self._overlaps.are_in(leaves):\n",
        "            if False:\n",
        ("tests/torch/test_overlaps.py",),
    ),
    Fault(
        "other strides of what is written to are not noticed",
        f"{_ENGINE}/program.py",
        "            if self._overlaps.are_strided_otherwise(leaves):\n",
        "            if False:\n",
        ("tests/torch/test_overlaps.py",),
    ),
    Fault(
        "results lie as kernels give them",
        f"{_ENGINE}/program.py",
        '            if (order := order_of(node.meta["val"])) is not None:\n',
        "            if (order := None) is not None:\n",
        ("tests/torch/test_results.py",),
    ),
    Fault(
        "a write without gradients to what has one is part of the graph",
        f"{_FRONTEND}/writes.py",
        "            if is_quiet and storage in made:\n",
        "            if False:\n",
        (_PROGRAMS, "tests/torch/test_inplace.py", "tests/torch/programs/test_generated.py"),
    ),
    Fault(
        "writes with and without gradients to one argument are part of the graph",
        f"{_FRONTEND}/writes.py",
        "            if storage in owners and (enabled if is_quiet else storage in quiet):\n",
        "            if False:\n",
        (_PROGRAMS,),
    ),
    Fault(
        "the data of a tensor has the gradient of the tensor",
        f"{_FRONTEND}/functional.py",
        "            copies[node].target = torch.Tensor.detach\n",
        "            pass\n",
        (_PROGRAMS,),
    ),
    Fault(
        "a conversion that gives its operand gives a copy",
        f"{_FRONTEND}/memory.py",
        "    return operand if outputs and inputs and _view(outputs[0]) == _view(inputs[0]) else "
        "None\n",
        "    return None\n",
        (_PROGRAMS, "tests/torch/test_memory.py", "tests/torch/test_written_elsewhere.py"),
    ),
    Fault(
        "einsum that only permutes gives a copy",
        f"{_FRONTEND}/memory.py",
        "    return bases if any(each is not None for each in bases) else []\n",
        "    return []\n",
        (_PROGRAMS, "tests/torch/test_memory.py", "tests/torch/test_written_elsewhere.py"),
    ),
    Fault(
        "late hooks are not noticed",
        f"{_ENGINE}/module.py",
        "any(number >= first_new for hooks in (*GLOBAL_HOOKS, *own_hooks) for number in hooks)",
        "False",
        ("tests/torch/test_late_hooks.py",),
    ),
    Fault(
        "pieces of one code share programs whatever their strides",
        f"{_ENGINE}/piece.py",
        "torch.get_default_device(), *strides)",
        "torch.get_default_device())",
        ("tests/torch/test_memory.py", "tests/torch/test_results.py", "tests/torch/test_calls.py"),
    ),
    Fault(
        "gradients of inputs that are written to read what was written",
        f"{_ENGINE}/step.py",
        "index(place)] = tensors[place].clone()\n",
        "index(place)] = tensors[place]\n",
        (_PROGRAMS, "tests/torch/test_own_writes.py"),
    ),
    Fault(
        "a rehearsal writes statistics",
        f"{_ENGINE}/step.py",
        "        if results and not REHEARSING.get():\n",
        "        if results:\n",
        ("tests/torch/test_own_writes.py",),
    ),
    Fault(
        "parts before others write statistics",
        f"{_ENGINE}/trained.py",
        "for each in reversed(self.levels) if each.taken), set())",
        "for each in self.levels if each.taken), set())",
        ("tests/torch/test_own_writes.py",),
    ),
    Fault(
        "parts write what is read behind them",
        f"{_ENGINE}/trained.py",
        "last_nodes.issuperset((results[place], *target.users))",
        "results[place] in last_nodes",
        ("tests/torch/test_own_writes.py",),
    ),
    Fault(
        "what is written is read when other writes are made",
        f"{_ENGINE}/program.py",
        "        for place in self._read_first:\n",
        "        for place in ():\n",
        ("tests/torch/test_overlaps.py",),
    ),
)
