"""Trains torchvision's networks on folders of pictures, as scripts for ImageNet do.

It knows nothing of minidnn.  ``--dummy`` takes random pictures, a few of them.
"""

import argparse
import os
import random
import shutil

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, models, transforms

parser = argparse.ArgumentParser(description="training of image classifiers")
parser.add_argument("data", nargs="?", default="imagenet", help="folder with train and val")
parser.add_argument("-a", "--arch", default="resnet18")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("--start-epoch", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=256, type=int)
parser.add_argument("--lr", "--learning-rate", default=0.1, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--resume", default="", help="a checkpoint")
parser.add_argument("-e", "--evaluate", action="store_true")
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--dummy", default=0, type=int, help="so many random pictures instead of data")
parser.add_argument("--size", default=224, type=int, help="rows and columns of pictures")


class AverageMeter:
    """The last value, and the mean of all."""

    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def accuracy(output, target, topk=(1,)):
    """Per cent of the targets that are among the first k."""
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        size = target.size(0)
        return [correct[:k].reshape(-1).float().sum(0).mul(100.0 / size) for k in topk]


def loaders(args):
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    if args.dummy:
        shape = (3, args.size, args.size)
        pictures = transforms.Compose([transforms.ToTensor(), normalize])
        train = datasets.FakeData(args.dummy, shape, 10, pictures)
        val = Subset(datasets.FakeData(args.dummy, shape, 10, pictures), range(args.dummy // 2))
    else:
        augment = [transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip()]
        train = datasets.ImageFolder(
            os.path.join(args.data, "train"),
            transforms.Compose([*augment, transforms.ToTensor(), normalize]),
        )
        crop = [transforms.Resize(args.size * 8 // 7), transforms.CenterCrop(args.size)]
        val = datasets.ImageFolder(
            os.path.join(args.data, "val"),
            transforms.Compose([*crop, transforms.ToTensor(), normalize]),
        )
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    return DataLoader(train, shuffle=True, **options), DataLoader(val, shuffle=False, **options)


def train(loader, model, criterion, optimizer, epoch, device, args):
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    model.train()
    for i, (images, target) in enumerate(loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target)[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}]\t{losses}\t{top1}")


def validate(loader, model, criterion, device):
    losses = AverageMeter("Loss", ":.4e")
    top1, top5 = AverageMeter("Acc@1", ":6.2f"), AverageMeter("Acc@5", ":6.2f")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images, target = images.to(device), target.to(device)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            first, fifth = accuracy(output, target, topk=(1, 5))
            top1.update(first.item(), images.size(0))
            top5.update(fifth.item(), images.size(0))
    print(f" *   {losses} Acc@1 {top1.avg:.3f} Acc@5 {top5.avg:.3f}")
    return top1.avg


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"=> creating model '{args.arch}'")
    model = models.__dict__[args.arch](num_classes=10 if args.dummy else 1000)
    model = model.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    best = 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        args.start_epoch = checkpoint["epoch"]
        best = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"=> loaded checkpoint '{args.resume}' (epoch {checkpoint['epoch']})")
    train_loader, val_loader = loaders(args)
    if args.evaluate:
        validate(val_loader, model, criterion, device)
        return
    for epoch in range(args.start_epoch, args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device)
        scheduler.step()
        is_best, best = acc1 > best, max(acc1, best)
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "arch": args.arch,
                "state_dict": model.state_dict(),
                "best_acc1": best,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            is_best,
        )


if __name__ == "__main__":
    main()
