"""kornia and torchmetrics."""

from __future__ import annotations

from library_programs.program import Compile, Program, Step


def kornia_augmentation(compile: Compile) -> Step:
    import kornia.augmentation as augment
    import torch

    pipeline = torch.nn.Sequential(
        augment.RandomHorizontalFlip(p=0.5),
        augment.RandomAffine(degrees=15.0, p=1.0),
        augment.Normalize(torch.zeros(3), torch.ones(3)),
    )
    images = torch.rand(2, 3, 16, 16)
    call = compile(pipeline)
    return lambda: call(images)


def kornia_filters(compile: Compile) -> Step:
    import kornia
    import torch

    images = torch.rand(2, 3, 16, 16)

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        blurred = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        gray = kornia.color.rgb_to_grayscale(blurred)
        edges = kornia.filters.sobel(gray)
        warped = kornia.geometry.transform.rotate(x, torch.tensor([10.0, -20.0]))
        return [edges, warped, kornia.color.rgb_to_hsv(x), kornia.losses.ssim_loss(x, blurred, 5)]

    call = compile(forward)
    return lambda: call(images)


def torchmetrics_collection(compile: Compile) -> Step:
    import torch
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(5),
            "f1": MulticlassF1Score(5),
            "confusion": MulticlassConfusionMatrix(5),
        }
    )
    logits, target = torch.randn(20, 5), torch.randint(0, 5, (20,))
    call = compile(metrics)
    return lambda: call(logits, target)


def torchmetrics_regression(compile: Compile) -> Step:
    import torch
    from torchmetrics import MeanSquaredError, PearsonCorrCoef

    error, correlation = MeanSquaredError(), PearsonCorrCoef()
    x, y = torch.randn(30), torch.randn(30)

    def update() -> list[torch.Tensor]:
        error.update(x, y)
        correlation.update(x, y)
        return [error.compute(), correlation.compute()]

    return compile(update)


PROGRAMS = {
    "kornia augmentations": Program("kornia", kornia_augmentation),
    "kornia filters and colours": Program("kornia", kornia_filters),
    "torchmetrics classification": Program("torchmetrics", torchmetrics_collection),
    "torchmetrics regression": Program("torchmetrics", torchmetrics_regression),
}
