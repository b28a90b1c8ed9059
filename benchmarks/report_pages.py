"""The pages of results, in the order in which their index names them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import (
    beyond,
    chain_report,
    choices,
    cuda_convolutions,
    cuda_sequences,
    cuda_zoo_report,
    floors,
    fusion,
    fusion_bound,
    onnx_networks_report,
    optimize_report,
    random_choices,
    random_contractions,
    report_tables,
    scaling,
    timm_networks,
    training_report,
)
from benchmarks.figures import Results
from benchmarks.report import RESULTS, Page, Section

SLOWEST = 10


def results(function: Callable[[Results], str], name: str) -> Callable[[Any], str]:
    """A table of a file that its benchmark reads as ``Results``."""
    return lambda _: function(Results(RESULTS / name, measures=False))


def cpu(title: str, machine: str, about: str = "") -> Section:
    return Section(
        title,
        "cpu_networks.json",
        "minidnn bench --batch 1,16 --threads 2 --json results.json",
        report_tables.networks,
        about,
        part=report_tables.on(machine),
        plot=report_tables.networks_plot,
    )


def chain(machine: str, name: str, commit: str) -> Section:
    return Section(
        machine,
        name,
        f"python -m benchmarks.chain compare --json {name}; ... strategies",
        results(chain_report.tables, name),
        commit=commit,
        plot=lambda _: chain_report.plot(Results(RESULTS / name, measures=False)),
    )


def bound(machine: str, name: str) -> Section:
    return Section(
        f"How much there is to gain, {machine}",
        name,
        "python -m benchmarks.fusion_bound densenet121 squeezenet1_1 --batch 1 16 --json FILE",
        lambda figures: "\n".join(
            [fusion_bound.TITLES, *map(fusion_bound.line, figures["fusion bound"].values())]
        ),
        "Layers over their contractions bound what fusion can gain, whoever does it.",
    )


def torch_modes(machine: str, name: str, commit: str) -> Section:
    return Section(
        f"torchvision's networks beyond the classics, {machine}",
        name,
        "python -m benchmarks.beyond --threads 2 --json FILE",
        lambda figures: beyond.table(figures["2 threads"]),
        commit=commit,
    )


def optimized(title: str, name: str, commit: str) -> Section:
    def table(figures: Any) -> str:
        parts = [part for part in figures if re.fullmatch(r"\w+, \w+, batch \d+", part)]
        found = Results(RESULTS / name, measures=False)
        return "\n".join(optimize_report.table(found, part) for part in parts)

    command = "python -m benchmarks.optimize --json FILE"
    return Section(title, name, command, table, commit=commit)


ZOO = "python -m benchmarks.cuda_zoo results.jsonl --workers 5"
PAGES = (
    Page(
        "cpu-networks",
        "Networks on the CPU",
        "The zoo beside OpenVINO, ONNX Runtime, ncnn, MNN and PyTorch in exact float32 with two "
        "threads. A ratio is a peer's time by minidnn's, with its 95 % interval: above 1 minidnn "
        "is faster.",
        (
            cpu("Zen 5, AVX-512", "AMD EPYC (26/"),
            cpu(
                "Sapphire Rapids, AVX-512",
                "Intel(R) Xeon(R) Processor (6/207",
                "Other work ran on the rest of the machine: compare ratios, not milliseconds.",
            ),
            cpu(
                "Zen 3, AVX2",
                "AMD EPYC (25/1",
                "The host's clock swings by up to 1.7: compare ratios, not milliseconds. MNN's "
                "results deviate more than exact float32 allows where a network has "
                "normalizations.",
            ),
            Section(
                "Threads",
                "scaling_sapphire_rapids.json",
                "python -m benchmarks.scaling resnet50 vgg16 --batch 64 --against onnxruntime "
                "torch --json FILE",
                results(
                    lambda found: "\n".join(scaling.report(found, ["resnet50", "vgg16"])),
                    "scaling_sapphire_rapids.json",
                ),
                "Batch 64. The other cores of the machine worked on other things.",
            ),
        ),
    ),
    onnx_networks_report.PAGE,
    Page(
        "cpu-chain",
        "BrainSlug's chain on the CPU",
        "A chain of N blocks of max pooling 3x3 with stride 1, normalization and ReLU: beside "
        "other engines, and by fusion strategy.",
        (
            chain("Zen 5, AVX-512", "chain_cpu_zen5.json", "9e32b27"),
            chain("Zen 3, AVX2", "chain_cpu_zen3.json", "3343069"),
            chain("Sapphire Rapids, AVX-512", "chain_cpu_sapphire_rapids.json", "3aa2076"),
        ),
    ),
    Page(
        "cpu-fusion",
        "Fusion by itself on the CPU",
        "Each network under three strategies in turn in one process, so that nothing but fusion "
        "differs: layer by layer, with what contractions absorb, and depth first.",
        (
            Section(
                "The zoo, Sapphire Rapids",
                "fusion_xeon.json",
                "python -m benchmarks.fusion --json FILE",
                lambda figures: fusion.table(figures["rows"]),
                commit="7a6f368, 4525402",
            ),
            bound("Sapphire Rapids", "fusion_bound_sapphire_rapids.json"),
            bound("Zen 3", "fusion_bound_zen3.json"),
        ),
    ),
    Page(
        "cpu-floors",
        "Floors on the CPU",
        "Networks beside the least time that arithmetic and memory allow, both measured beside "
        "the network, and the regions that lose most.",
        tuple(
            Section(
                machine,
                name,
                "python -m benchmarks.floors NETWORK --batch 1 16 --json FILE",
                lambda figures: floors.tables(figures, SLOWEST),
            )
            for machine, name in (
                ("Sapphire Rapids, AVX-512", "floors_sapphire_rapids.json"),
                ("Zen 3, AVX2", "floors_zen3.json"),
            )
        ),
    ),
    Page(
        "cpu-convolutions",
        "Convolutions on the CPU",
        "Layers of ResNet-50 beside the peak of multiply-adds, and what the price model chooses "
        "beside the fastest that was measured.",
        (
            Section(
                "ResNet-50's layers, Zen 5",
                "convolution_zen5.json",
                "python -m benchmarks.convolution --json FILE",
                report_tables.convolutions,
                commit="9e32b27",
            ),
            *(
                Section(
                    f"Choices by price, {machine}",
                    name,
                    "python -m benchmarks.choices NETWORK --batch 1 16 --json FILE",
                    choices.table,
                )
                for machine, name in (
                    ("Sapphire Rapids", "choices_spr.json"),
                    ("Zen 3", "choices_zen3.json"),
                )
            ),
            Section(
                "Choices for random convolutions, Sapphire Rapids",
                "random_choices_spr.jsonl",
                "python -m benchmarks.random_choices 300 --precision P --json FILE",
                random_choices.table,
                "Convolutions of five kinds and any size. Columns say which part of the choices is "
                "near the fastest that was measured, how much slower they are on average and at "
                "most, and how far predictions are off beside their median.",
            ),
        ),
    ),
    Page(
        "cpu-costs",
        "Compiling on the CPU",
        "Seconds of md.compile, and from the imported library to the end of the first run.",
        (
            Section(
                "md.compile, kernels in the cache",
                "compile_zen5.json",
                "python -m benchmarks.compile_time resnet50 vgg16 --json FILE",
                report_tables.seconds_of("warm cache"),
                commit="1e1bb8c",
            ),
            Section(
                "md.compile, empty cache",
                "compile_zen5.json",
                "python -m benchmarks.compile_time resnet50 densenet201 --cold --json FILE",
                report_tables.seconds_of("empty cache"),
                commit="1e1bb8c",
            ),
            Section(
                "First run beside other engines",
                "first_run_zen3.json",
                "python -m benchmarks.first_run NETWORK --json FILE",
                report_tables.seconds_of("first run"),
            ),
        ),
    ),
    Page(
        "pytorch",
        "PyTorch's modules",
        "md.optimize beside PyTorch's own modes, beside the zoo's own networks, and with a layer "
        "in the middle that only PyTorch knows.",
        (
            torch_modes("Zen 4", "beyond_zen4.json", "d39be15"),
            torch_modes("Zen 3", "beyond_zen3.json", "48d10fa, fc750f7, c8ee913"),
            torch_modes("Sapphire Rapids", "beyond_sapphire_rapids.json", "e7fc001, 647bc02"),
            *(
                Section(
                    f"timm's networks, Zen 3, {threads}",
                    "timm_zen3.json",
                    "python -m benchmarks.timm_networks --json FILE",
                    results(partial(timm_networks.table, part=threads), "timm_zen3.json"),
                    "The ratio is the time of `md.optimize` by eager's: below 1 minidnn is faster.",
                    commit="1e75d6d, 6dc6979",
                )
                for threads in ("2 threads", "1 threads")
            ),
            optimized("Beside the zoo, Zen 3", "optimize_zen3.json", "48d10fa, e3b625f"),
            optimized(
                "Beside the zoo, Sapphire Rapids", "optimize_sapphire_rapids.json", "f7bc1f5"
            ),
            optimized("Beside the zoo, H200", "optimize_zoo_h200.json", "c8596f6"),
            optimized("An unknown layer, Zen 3", "split_zen3.json", "437ace0"),
            optimized("An unknown layer, H200", "optimize_h200.json", "94aa3b7, ec9f293"),
        ),
    ),
    Page(
        "cuda-networks",
        "Networks on a GPU",
        "The zoo, and ten networks beyond it, beside PyTorch's modes. The ratio is the fastest "
        "peer's time by minidnn's; errors are the largest deviations from PyTorch's float32 by "
        "the largest output.",
        (
            Section(
                "The zoo",
                "cuda_zoo_h200.jsonl",
                ZOO,
                cuda_zoo_report.report,
                "Clocks differ between runs by up to a quarter: compare ratios, not milliseconds "
                "of different rows.",
                plot=report_tables.cells_plot,
            ),
            Section(
                "Beyond the zoo",
                "cuda_beyond_h200.jsonl",
                f"{ZOO} --beyond",
                cuda_zoo_report.report,
            ),
            Section(
                "Beside torch.compile's max-autotune",
                "cuda_autotune_h200.jsonl",
                f"{ZOO} --engines minidnn torch-compile torch-max-autotune",
                report_tables.beside,
            ),
            Section(
                "Beside PyTorch as it is called",
                "cuda_calls_h200.jsonl",
                f"{ZOO} --engines minidnn torch-calls --precisions float32",
                report_tables.beside,
                "Eager mode, every kernel launched by Python, exact float32.",
            ),
        ),
    ),
    training_report.PAGE,
    Page(
        "cuda-fusion",
        "Fusion by itself on a GPU",
        "Each network under three strategies in turn in one process, and the slowest regions of "
        "some networks beside their floors.",
        (
            Section(
                "The zoo",
                "cuda_fusion_h200.jsonl",
                f"{ZOO} --engines minidnn minidnn-contractions minidnn-layers --regions 0",
                cuda_zoo_report.fusion,
                "Optimisable are the regions without a convolution or linear layer; regions are "
                "timed one by one, so that they are more than the whole.",
            ),
            Section(
                "The slowest regions",
                "cuda_regions_h200.jsonl",
                f"{ZOO} --regions {SLOWEST}",
                lambda cells: cuda_zoo_report.slowest(cells, SLOWEST, report_tables.reasons()),
                "Floors are bytes at the rate of copies and operations at that of large products. "
                "A region is slow in some runs alone if other work had the GPU meanwhile.",
            ),
        ),
    ),
    Page(
        "cuda-sequences",
        "Sequences on a GPU",
        "Kernels of depth-first sequences: single steps beside a copy of as many bytes, chains "
        "beside torch.compile, and BrainSlug's strategies.",
        (
            Section(
                "Steps, chains and strategies",
                "cuda_sequences_h200.json",
                "python -m benchmarks.cuda_sequences single|chains|strategies FILE",
                cuda_sequences.report,
                'A share in brackets is that of the fastest kernel that `tune="exhaustive"` '
                "finds, where it is another.",
                plot=lambda figures: cuda_sequences.plot(figures["strategies"]),
            ),
        ),
    ),
    Page(
        "cuda-contractions",
        "Convolutions and moves on a GPU",
        "Layers by our kernels and by cuDNN, with bias and ReLU, beside their floors.",
        (
            Section(
                "Convolutions",
                "cuda_convolutions_h200.jsonl",
                "python -m benchmarks.cuda_convolutions FILE --layers resnet50 --batch 1",
                cuda_convolutions.table,
            ),
            Section(
                "Depthwise convolutions",
                "cuda_depthwise_h200.jsonl",
                "python -m benchmarks.cuda_convolutions FILE --layers depthwise --batch 32",
                report_tables.depthwise,
                commit="2d90b0f and before",
            ),
            Section(
                "Choices for random convolutions",
                "random_contractions_h200.jsonl",
                "python -m benchmarks.random_contractions 100 --json FILE",
                random_contractions.table,
                "Quick is the fastest but for engines that compile, heuristic the choice without "
                "measuring.",
            ),
            Section(
                "Changes of layout",
                "cuda_moves_h200.json",
                "python -m benchmarks.cuda_moves FILE",
                report_tables.moves,
            ),
        ),
    ),
    Page(
        "cuda-costs",
        "Compiling and calling on a GPU",
        "Seconds of md.compile, memory, and what a call costs the host.",
        (
            Section(
                "Compiling",
                "cuda_costs_h200.json",
                "python -m benchmarks.cuda_costs compile FILE",
                report_tables.cuda_compile,
                part=partial(report_tables.only, part="compile"),
            ),
            Section(
                "Memory",
                "cuda_costs_h200.json",
                "python -m benchmarks.cuda_costs memory FILE",
                report_tables.cuda_memory,
                part=partial(report_tables.only, part="memory"),
            ),
            Section(
                "A call of ResNet-50",
                "cuda_costs_h200.json",
                "python -m benchmarks.cuda_costs host FILE",
                report_tables.cuda_host,
                "Float16, batch 1.",
                part=partial(report_tables.only, part="host"),
            ),
            Section(
                "cuDNN's binding",
                "cudnn_overhead_h200.json",
                "python -m benchmarks.cudnn_overhead --json FILE",
                report_tables.overhead,
                commit="e4b043e",
            ),
        ),
    ),
    Page(
        "brainslug",
        "BrainSlug's tables beside ours",
        "Tables 1 and 2 of arXiv 1804.08378, in percent, and what they mean is said in "
        "[beside the paper](../explanation/beside-the-brainslug-paper.md).",
        (
            Section(
                "Table 1, GPU",
                "cuda_calls_h200.jsonl",
                f"{ZOO} --engines minidnn torch-calls --precisions float32",
                report_tables.paper_one,
                "Ours is the time of PyTorch's eager calls by minidnn's, less 1.",
            ),
            Section(
                "Table 1, CPU",
                "fusion_xeon.json",
                "python -m benchmarks.fusion --json FILE",
                report_tables.with_families(report_tables.paper_one_cpu, 3, 4),
                "Ours is the time of our own layers by that of the fused network, less 1.",
                commit="7a6f368, 4525402",
            ),
            Section(
                "Table 2, GPU",
                "cuda_fusion_h200.jsonl",
                f"{ZOO} --engines minidnn minidnn-contractions minidnn-layers --regions 0",
                report_tables.with_families(report_tables.paper_two, 9, 10, 12, 13),
                "Batch 128, float32. Ours is the fused network beside our own layers.",
            ),
            Section(
                "Table 2, CPU",
                "fusion_bound_sapphire_rapids.json",
                "python -m benchmarks.fusion_bound densenet121 squeezenet1_1 --batch 1 16",
                report_tables.paper_two_cpu,
            ),
        ),
    ),
)
