"""timm's networks, one of each of 30 families: ``md.optimize`` beside eager PyTorch, on the CPU.

    python -m benchmarks.timm_networks [--networks fasternet_t0 --rounds 15] --json FILE
    python -m benchmarks.timm_networks --json FILE --table

timm is installed apart, ``pip install --no-deps timm huggingface_hub httpcore2 pyyaml tqdm``, with
torchvision.  The list was written before any of them was tried.  Weights are random; nothing is
downloaded.  Each network is measured in a process of its own, in which ``optimize`` and eager take
turns in bursts.  Errors are the largest beside float64, in units of the largest result.  What the
file has already is not measured again, unless the network is named.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Results, line, markdown
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.worker import LoadedEngine
from minidnn.measure import compared, interleaved

#: One network of each family, which is a module of timm's.
NETWORKS = {
    "cspresnet50": "cspnet",
    "dla34": "dla",
    "dpn68": "dpn",
    "eca_nfnet_l0": "nfnet",
    "edgenext_xx_small": "edgenext",
    "ese_vovnet19b_dw": "vovnet",
    "fasternet_t0": "fasternet",
    "fastvit_t8": "fastvit",
    "ghostnet_100": "ghostnet",
    "hardcorenas_a": "hardcorenas",
    "hgnetv2_b0": "hgnet",
    "hrnet_w18_small": "hrnet",
    "inception_next_atto": "inception_next",
    "levit_128s": "levit",
    "mambaout_femto": "mambaout",
    "mixer_s32_224": "mlp_mixer",
    "mobilenetv4_conv_small": "mobilenetv3",
    "mobilevit_xxs": "mobilevit",
    "pit_ti_224": "pit",
    "poolformer_s12": "metaformer",
    "repvgg_a0": "byobnet",
    "repvit_m0_9": "repvit",
    "res2net50_14w_8s": "res2net",
    "resnest14d": "resnest",
    "resnetv2_50": "resnetv2",
    "rexnet_100": "rexnet",
    "selecsls42b": "selecsls",
    "skresnet18": "sknet",
    "starnet_s1": "starnet",
    "tf_efficientnet_lite0": "efficientnet",
}

#: Of families that were known to have been slow before the list was written; not of the list.
KNOWN = {"convnextv2_atto": "convnext", "vit_tiny_patch16_224": "vision_transformer"}

REST_SECONDS = 0.05  # in which threads stop spinning


def network(name: str) -> Any:
    """timm's module; parameters and statistics that begin as one number throughout are drawn anew,
    so that scales of 1e-6 and weights of 0 hide nothing."""
    import torch
    from torch import nn

    from minidnn.frontends.torch.torchvision import make_importable

    make_importable()
    import timm

    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False).eval().requires_grad_(False)
    for parameter in net.parameters():
        if (parameter == parameter.flatten()[0]).all():
            low, high = (0.5, 1.5) if parameter.any() else (-0.1, 0.1)
            parameter.data.uniform_(low, high)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return net


def measured(name: str, threads: int, rounds: int, seconds: float) -> LoadedEngine:
    """An engine that only says what was measured when it was made."""
    import copy

    import torch

    import minidnn as md

    torch.set_num_threads(threads)
    net = network(name)
    shape = (1, *net.default_cfg["input_size"])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    fast = md.optimize(net, x, device="cpu", threads=threads)
    record: dict[str, Any] = {"compiled in": time.perf_counter() - start, "shape": shape}
    record["parts"] = sum(len(program.parts) for program in fast.programs)
    broken = [piece.broken for piece in fast.pieces if piece.broken is not None]
    record["left"] = "\n".join([*(program.rest() for program in fast.programs), *broken])
    record["whole"] = not record["left"] and record["parts"] == 1
    with torch.inference_mode():
        exact = copy.deepcopy(net).double()(x.double())
        for engine, result in (("optimize", fast(x)), ("eager", net(x))):
            worst = (result - exact).abs().max() / exact.abs().max()
            record[f"{engine}, error"] = float(worst)
        runs: dict[str, Callable[[], Any]] = {"optimize": lambda: fast(x), "eager": lambda: net(x)}
        bursts = {engine: partial(_burst, run, seconds) for engine, run in runs.items()}
        record |= compared(interleaved(bursts, rounds), "eager")
    return LoadedEngine(lambda: None, about=record)


def _burst(run: Callable[[], Any], seconds: float) -> float:
    """The median seconds of a call in a burst.  The first call, behind the threads that the other
    engine has left, does not count."""
    time.sleep(REST_SECONDS)
    run()
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < 3:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one network, or why it failed."""
    given = {key: getattr(options, key) for key in ("threads", "rounds", "seconds")}
    try:
        target = f"{__spec__.name}:measured"
        with EngineProcess(name, target, {"name": name, **given}) as process:
            return process.about
    except EngineError as error:
        return {"failed": str(error)[-2000:]}


def row(name: str, record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    family = {**NETWORKS, **KNOWN}[name]
    if "failed" in record:
        return [name, family, f"failed: {record['failed'].splitlines()[0]:.200}"]
    times = record["seconds"]
    taken = "whole" if record["whole"] else f"{record['parts']} parts"
    cells = [f"{1e3 * times[engine]['value']:.4g}" for engine in ("optimize", "eager")]
    shown = "{value:.2f} ({low:.2f} to {high:.2f})".format(**record["ratio"]["optimize"])
    cells += [shown, taken]
    cells += [f"{record[f'{engine}, error']:.1e}" for engine in ("optimize", "eager")]
    return [name, family, *cells]


def table(results: Results, part: str) -> str:
    titles = ["network", "family", "`optimize`, ms", "eager, ms", "ratio", "taken"]
    titles += ["error of `optimize`", "of eager"]
    records = results.part(part)
    rows = (row(name, records[name]) for name in (*NETWORKS, *KNOWN) if name in records)
    counted = [record for name, record in records.items() if name in NETWORKS]
    done = [record for record in counted if "seconds" in record]
    slower = [record for record in done if record["ratio"]["optimize"]["value"] > 1]
    whole = sum(record["whole"] for record in done)
    note = f"{len(counted)} of {len(NETWORKS)}: {whole} whole, {len(slower)} slower"
    return f"{markdown(titles, rows)}\n\n{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    names = (*NETWORKS, *KNOWN)
    parser.add_argument("--networks", nargs="+", choices=names, metavar="NET")
    parser.add_argument("--rounds", type=int, default=9, help="alternations (9)")
    parser.add_argument("--seconds", type=float, default=0.2, help="a burst's length (0.2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True, help="where figures are written")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    options = parser.parse_args()
    results = Results(options.json, measures=not options.table)
    part = f"{options.threads} threads"
    for name in () if options.table else options.networks or names:
        if options.networks or name not in results.part(part):
            record = measure(name, options)
            results.add(part, name, record)
            print(line(row(name, record)), record.get("left", ""), sep="\n", flush=True)
    print(f"\n{results.machine}\n\n{table(results, part)}")


if __name__ == "__main__":
    main()
