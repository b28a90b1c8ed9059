"""What is said of a kernel in numbers: each metric's formula, unit, and counters.

Counters are those of Nsight Compute.  A metric without one comes from timers, from the compiler or
by calculation, and is known where counters are forbidden, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: what it is called everywhere.
        formula: how it is computed, in words.
        unit: of its value; "" for a ratio.
        counter: an expression over counters of Nsight Compute; "" if it needs none.
    """

    name: str
    formula: str
    unit: str
    counter: str


_FLOPS = " + ".join(
    f"{factor}smsp__sass_thread_inst_executed_op_{name}_pred_on.sum"
    for name, factor in (("fadd", ""), ("fmul", ""), ("ffma", "2 * "))
)
_TIME, _DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
_TURNS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

METRICS = (
    Figure("execution time", "time from the kernel's start to its end", "s", ""),
    Figure("variability", "standard deviation of the execution time / its mean", "", ""),
    Figure("operations", "additions + multiplications + 2 * fused multiply-adds", "FLOP", _FLOPS),
    Figure("compute throughput", "operations / execution time", "FLOP/s", f"({_FLOPS}) / {_TIME}"),
    Figure("compute utilization", "compute throughput / theoretical peak", "", ""),
    Figure("memory throughput", "bytes accessed / execution time", "B/s", f"{_DRAM} / {_TIME}"),
    Figure(
        "memory bandwidth utilization",
        "memory throughput / theoretical peak",
        "",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed / 100",
    ),
    Figure(
        "operational intensity", "operations / bytes accessed", "FLOP/B", f"({_FLOPS}) / {_DRAM}"
    ),
    Figure(
        "attainable performance",
        "the smaller of peak FLOP/s and operational intensity * peak bandwidth",
        "FLOP/s",
        "",
    ),
    Figure(
        "theoretical occupancy",
        "warps that fit a multiprocessor / most warps of one",
        "",
        "sm__maximum_warps_per_active_cycle_pct / 100",
    ),
    Figure(
        "occupancy",
        "active warps a multiprocessor / most warps of one",
        "",
        "sm__warps_active.avg.pct_of_peak_sustained_active / 100",
    ),
    Figure(
        "instructions per cycle",
        "instructions that warps executed / cycles of a multiprocessor",
        "1/cycle",
        "4 * smsp__inst_executed.avg.per_cycle_active",
    ),
    Figure(
        "warp execution efficiency",
        "average active threads of a warp / 32",
        "",
        "smsp__thread_inst_executed_per_inst_executed.ratio / 32",
    ),
    Figure(
        "coalescing",
        "bytes that warps asked for / bytes of the sectors that they got",
        "",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct / 100",
    ),
    Figure(
        "sectors a request",
        "pieces of 32 bytes that a load of a warp touches; 4 is least for 32 floats",
        "",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    ),
    Figure(
        "shared memory efficiency",
        "bytes of shared memory a wavefront / most bytes of one",
        "",
        "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct / 100",
    ),
    Figure(
        "bank conflicts",
        "turns of shared memory / turns that as many words need",
        "",
        f"{_TURNS} / ({_TURNS} - l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum)",
    ),
    Figure(
        "warps",
        "warps that a multiprocessor has at once, on average",
        "",
        "sm__warps_active.avg.per_cycle_active",
    ),
    Figure(
        "L1 throughput",
        "bytes of the sectors that L1 is asked for / execution time",
        "B/s",
        f"l1tex__t_bytes.sum / {_TIME}",
    ),
    Figure(
        "L2 throughput",
        "bytes of the sectors that L2 is asked for / execution time",
        "B/s",
        f"lts__t_bytes.sum / {_TIME}",
    ),
    Figure("L1 hit rate", "L1 hits / all accesses", "", "l1tex__t_sector_hit_rate.pct / 100"),
    Figure(
        "L2 hit rate", "L2 hits / (all accesses - L1 hits)", "", "lts__t_sector_hit_rate.pct / 100"
    ),
    Figure(
        "multiprocessor efficiency",
        "cycles in which a multiprocessor had work / all its cycles",
        "",
        "sm__cycles_active.avg / sm__cycles_elapsed.max",
    ),
    Figure("active cycles", "cycles with work, a multiprocessor", "cycle", "sm__cycles_active.avg"),
    Figure("elapsed cycles", "clock * execution time", "cycle", "sm__cycles_elapsed.max"),
    Figure(
        "memory clock to multiprocessor clock",
        "frequency of DRAM / frequency of multiprocessors",
        "",
        "dram__cycles_elapsed.avg.per_second / sm__cycles_elapsed.avg.per_second",
    ),
    Figure(
        "register pressure", "registers a thread / 255", "", "launch__registers_per_thread / 255"
    ),
    Figure("spills", "bytes of registers that a thread keeps in memory", "B", ""),
    Figure("waves", "blocks / (multiprocessors * blocks that fit one)", "", ""),
    Figure(
        "model error", "the larger of predicted and measured time / the smaller of the two", "", ""
    ),
)
