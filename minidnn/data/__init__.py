"""Data for training: datasets, augmentation, and batches that a run can resume at.

train = md.data.Loader(
    md.data.Folder("train", size=224, augment=[md.data.ResizedCrop(224), md.data.Flip()]),
    batch=128, shuffle=True, seed=0, workers=4, drop_last=True,
)
for x, target in train:  # one epoch: float32 (N, C, H, W), int64 (N,)
    ...
"""

from minidnn.data.augment import (
    Affine,
    ColorJitter,
    Cutout,
    Flip,
    Normalize,
    RandomCrop,
    ResizedCrop,
    Rotation,
    VerticalFlip,
)
from minidnn.data.datasets import Arrays, DataError, Dataset, Draws, Samples, Subset
from minidnn.data.files import (
    CIFAR10_CLASSES,
    FASHION_CLASSES,
    Folder,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    read_idx,
)
from minidnn.data.loader import Batches, Loader, WeightedSampler
from minidnn.data.moves import BatchMove, Boxes, Masks, moved
from minidnn.data.policies import RandAugment, RandomErasing, TrivialAugment

__all__ = [
    "CIFAR10_CLASSES",
    "FASHION_CLASSES",
    "Affine",
    "Arrays",
    "BatchMove",
    "Batches",
    "Boxes",
    "ColorJitter",
    "Cutout",
    "DataError",
    "Dataset",
    "Draws",
    "Flip",
    "Folder",
    "Loader",
    "Masks",
    "Normalize",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "ResizedCrop",
    "Rotation",
    "Samples",
    "Subset",
    "TrivialAugment",
    "VerticalFlip",
    "WeightedSampler",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "moved",
    "read_idx",
]
