"""Which process this is, by the variables of each starter as it sets them."""

from __future__ import annotations

import pytest

from minidnn.distributed import DistributedError, RankInfo, find_rank

TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "gpu1", "MASTER_PORT": "29500"},
}
MPIRUN = {
    **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    **{"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
    **{"SLURM_JOB_ID": "1234567", "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1"},
}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (TORCHRUN, RankInfo(3, 4, 1, "gpu1", 29501)),
        (MPIRUN, RankInfo(1, 2, 1, "127.0.0.1", 29400)),
        (MPIRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, RankInfo(1, 2, 1, "a", 8)),
        (MPICH, RankInfo(1, 2, 1, "127.0.0.1", 29400)),
        (SLURM, RankInfo(5, 8, 1, "gpu07", 29400 + 14567)),
        (SLURM | {"SLURM_STEP_NODELIST": "node1,node2"}, RankInfo(5, 8, 1, "node1", 43967)),
        # torchrun within a job of Slurm's counts for more.
        (SLURM | TORCHRUN, RankInfo(3, 4, 1, "gpu1", 29501)),
    ],
)
def test_starters(variables: dict[str, str], place: RankInfo) -> None:
    assert find_rank(variables) == place


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "no variable says which process this is and of how many; valid is to start it by"),
        (TORCHRUN | {"RANK": "4"}, "RANK=4 and WORLD_SIZE=4; valid are ranks from 0 to the size"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1', as torchrun says; valid is an integer"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT='http', as torchrun says; valid"),
        (
            {"RANK": "0", "WORLD_SIZE": "1"},
            "LOCAL_RANK=None, as torchrun says; valid is an integer",
        ),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR is not set, and Open MPI does"),
    ],
)
def test_what_makes_no_sense_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(DistributedError, match=message):
        find_rank(variables)
