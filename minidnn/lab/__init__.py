"""The laboratory: small kernels, one idea each, with what they should cost and why.

    from minidnn import lab

    study = lab.model("conv", blocks=[(16, 16), (32, 8)], gpu="H100")
    print("\n".join(lab.table(study)))

A *ladder* is a row of kernels that compute the same; each is a *step* with one idea more.  A
*study* is what is known of steps with some blocks on some shapes, as plain data.
"""

from .api import ladder_of, model, network_shapes, run, tune
from .cpu.step import IspcStep
from .cuda.step import CudaStep
from .explain import ADVICE, Explanation, explain, table
from .page import save_plot, study_page
from .step import Ladder
from .studies import StudyError, load_study, recorded_studies, save_study
from .tuner import StepTuning

__all__ = [
    "ADVICE",
    "CudaStep",
    "Explanation",
    "IspcStep",
    "Ladder",
    "StepTuning",
    "StudyError",
    "explain",
    "ladder_of",
    "load_study",
    "model",
    "network_shapes",
    "recorded_studies",
    "run",
    "save_plot",
    "save_study",
    "study_page",
    "table",
    "tune",
]
