"""Images: torchvision, timm, diffusers, kornia, MONAI and segmentation-models, in parts that the others leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, training_step
from library_programs.uncommon_packages import computed


def detection_training(build: Callable[[Any], Any]) -> Any:
    """Losses of a detector of torchvision, with matching of boxes."""

    def make(compile: Compile) -> Step:
        import torch
        import torchvision

        model = build(torchvision).train()
        call = compile(model)
        pictures = [torch.rand(3, 48, 64), torch.rand(3, 64, 48)]
        targets = [
            {"boxes": torch.tensor([[4.0, 4, 30, 30], [10, 10, 40, 44]]), "labels": torch.tensor([1, 2])},
            {"boxes": torch.tensor([[8.0, 2, 30, 40]]), "labels": torch.tensor([1])},
        ]

        def step() -> Any:
            model.zero_grad()
            losses = call(pictures, targets)
            sum(losses.values()).backward()
            return losses

        return step

    return make


def plain_backbone(torchvision: Any) -> Any:
    import torch

    body = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, 4, 1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, 2, 1), torch.nn.ReLU()
    )
    body.out_channels = 32
    return body


def retina(torchvision: Any) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(((16, 32),), ((0.5, 1.0),))
    return torchvision.models.detection.RetinaNet(
        plain_backbone(torchvision), 3, min_size=48, max_size=64, anchor_generator=anchors
    )


def two_stage_detector(torchvision: Any) -> Any:
    """Faster R-CNN, which asks for the logarithm of a quotient of sizes as a number."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return torchvision.models.detection.FasterRCNN(
        plain_backbone(torchvision), 3, min_size=48, max_size=64, box_batch_size_per_image=8,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0),)), rpn_batch_size_per_image=16,
        box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2), rpn_post_nms_top_n_train=20,
    )  # fmt: skip


def fully_convolutional_detector(torchvision: Any) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(((16,),), ((1.0,),))
    return torchvision.models.detection.FCOS(
        plain_backbone(torchvision), 3, min_size=48, max_size=64, anchor_generator=anchors
    )


def augmented(compile: Compile) -> Step:
    """torchvision's second transforms, on images with boxes and masks."""
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    change = v2.Compose(
        [
            v2.RandomHorizontalFlip(0.5),
            v2.Resize((24, 24), antialias=True),
            v2.ColorJitter(0.2, 0.2),
            v2.GaussianBlur(3),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )
    call = compile(change)
    picture = tv_tensors.Image(torch.randint(0, 255, (3, 32, 40), dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[2, 3, 20, 24]]), format="XYXY", canvas_size=(32, 40))

    def step() -> Any:
        out, moved = call(picture, boxes)
        return [out.as_subclass(torch.Tensor), moved.as_subclass(torch.Tensor)]

    return step


def mixed_batches(compile: Compile) -> Step:
    import torch
    from torchvision.transforms import v2

    mix = v2.RandomChoice([v2.MixUp(num_classes=4), v2.CutMix(num_classes=4)])
    call = compile(mix)
    return lambda: list(call(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])))


def of_torchvision(name: str, size: tuple[int, ...], **options: Any) -> Any:
    """Losses alone: gradients in front of a normalization over few values are rounding."""

    def make(compile: Compile) -> Step:
        import torch
        import torchvision

        place = torchvision.models
        for part in name.split(".")[:-1]:
            place = getattr(place, part)
        model = getattr(place, name.split(".")[-1])(weights=None, **options)
        call, x = compile(model), torch.randn(*size)

        def loss() -> Any:
            out = call(x)
            return (out["out"] if isinstance(out, dict) else out).square().mean()

        return training_step(loss, model)

    return make


def optical_flow(torch: Any) -> Any:
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None).eval()
    return (lambda a, b: model(a, b, num_flow_updates=2)), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))


def of_timm(*names: str) -> Any:
    """Training of several small models, one after the other, by one function."""

    def make(compile: Compile) -> Step:
        import timm
        import torch

        models = [timm.create_model(name, num_classes=4) for name in names]
        calls = [compile(model) for model in models]
        x = torch.randn(2, 3, 64, 64)

        def step() -> Any:
            losses = []
            for model, call in zip(models, calls):
                model.zero_grad()
                size = model.default_cfg["input_size"][-1] if model.default_cfg.get("fixed_input_size") else 64
                given = x if size == 64 else torch.nn.functional.interpolate(x, size)
                loss = call(given).square().mean()
                loss.backward()
                losses.append(loss.detach())
            return losses

        return step

    return make


def timm_extras(compile: Compile) -> Step:
    """Mixed labels, an averaged model, adaptive clipping of gradients, an optimizer with decay by layer."""
    import timm
    import torch
    from timm.data import Mixup
    from timm.loss import JsdCrossEntropy, SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    model = timm.create_model("test_vit", num_classes=4, img_size=32)
    average = ModelEmaV3(model, decay=0.9)
    optimizer = create_optimizer_v2(model, "lamb", lr=1e-2, weight_decay=0.01, layer_decay=0.7)
    mixup, soft, split = Mixup(num_classes=4), SoftTargetCrossEntropy(), JsdCrossEntropy(num_splits=2, smoothing=0.1)

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        mixed, labels = mixup(x, y)
        loss = soft(model(mixed), labels) + split(model(x), y[:2])
        loss.backward()
        dispatch_clip_grad(model.parameters(), 0.1, mode="agc")
        optimizer.step()
        average.update(model)
        return loss.detach()

    call = compile(train)

    def step() -> Any:
        import numpy

        numpy.random.seed(0)
        loss = call(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3]))
        return [loss, *(p.detach().clone() for p in list(average.module.parameters())[:4])]

    return step


def of_diffusers(name: str, inputs: Callable[[Any], dict[str, Any]], **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import diffusers
        import torch

        model = getattr(diffusers, name)(**options).train()
        call, batch = compile(model), inputs(torch)

        def step() -> Any:
            model.zero_grad()
            out = call(**batch, return_dict=False)[0]
            out.square().mean().backward()
            grads = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
            return [out.detach(), torch.stack(grads).sum()]

        return step

    return make


def pipeline(compile: Compile) -> Step:
    """A whole pipeline of diffusers, whose network is compiled."""
    import torch
    from diffusers import DDIMScheduler, DDPMPipeline, UNet2DModel

    net = UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    ).eval()  # fmt: skip
    pipe = DDPMPipeline(net, DDIMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    call = compile(pipe.__call__)
    return lambda: torch.from_numpy(call(batch_size=1, num_inference_steps=3, output_type="numpy").images)


def averaged_diffusion(compile: Compile) -> Step:
    import torch
    from diffusers import DDPMScheduler
    from diffusers.optimization import get_cosine_schedule_with_warmup
    from diffusers.training_utils import EMAModel, compute_snr

    net = torch.nn.Conv2d(2, 2, 3, padding=1)
    average, noise = EMAModel(net.parameters(), use_ema_warmup=True), DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)

    def train(x: Any, drawn: Any, times: Any) -> Any:
        optimizer.zero_grad()
        weight = compute_snr(noise, times).clamp(max=5)
        loss = (weight * (net(noise.add_noise(x, drawn, times)) - drawn).square().mean((1, 2, 3))).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.step(net.parameters())
        return loss.detach()

    call = compile(train)

    def step() -> Any:
        x, drawn = torch.randn(3, 2, 8, 8), torch.randn(3, 2, 8, 8)
        loss = call(x, drawn, torch.randint(0, 50, (3,)))
        return [loss, *(p.clone() for p in average.shadow_params), schedule.get_last_lr()]

    return step


def segmentations(compile: Compile) -> Step:
    import segmentation_models_pytorch as smp
    import torch

    losses = [
        smp.losses.JaccardLoss("multilabel"), smp.losses.TverskyLoss("multilabel"), smp.losses.LovaszLoss("multilabel"),
        smp.losses.FocalLoss("multilabel"), smp.losses.SoftBCEWithLogitsLoss(smooth_factor=0.1), smp.losses.MCCLoss(),
    ]  # fmt: skip

    def measure(out: Any, mask: Any) -> Any:
        stats = smp.metrics.get_stats(out.sigmoid(), mask.long(), mode="multilabel", threshold=0.5)
        return [loss(out, mask) for loss in losses], smp.metrics.iou_score(*stats, reduction="micro")

    call = compile(measure)

    def step() -> Any:
        out = torch.randn(2, 1, 16, 16, requires_grad=True)
        values, score = call(out, (torch.rand(2, 1, 16, 16) > 0.5).float())
        sum(values).backward()
        return [*values, score, out.grad]

    return step


def augmentation_pipeline(compile: Compile) -> Step:
    """Several augmentations of images, masks and keypoints at once."""
    import kornia.augmentation as K
    import torch

    change = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.RandomAffine(10.0, p=1.0), K.ColorJiggle(0.1, 0.1, p=1.0),
        K.RandomErasing(p=0.5),
        data_keys=["input", "mask", "keypoints"],
    )  # fmt: skip
    call = compile(change)
    x, mask, points = torch.rand(2, 3, 16, 16), torch.randint(0, 2, (2, 1, 16, 16)).float(), torch.rand(2, 4, 2) * 15
    return lambda: call(x, mask, points)


def kornia_parts(compile: Compile) -> Step:
    import kornia as k
    import torch

    def work(x: Any, points: Any) -> Any:
        moved = k.geometry.transform_points(torch.eye(3)[None] * 1.1, points)
        home = k.geometry.find_homography_dlt(points, moved)
        opened = k.morphology.opening(x, torch.ones(3, 3))
        lab = k.color.rgb_to_lab(x)
        equal = k.enhance.equalize(x)
        clahe = k.enhance.equalize_clahe(x, grid_size=(2, 2))
        quaternion = k.geometry.conversions.rotation_matrix_to_quaternion(torch.eye(3)[None])
        pyramid = k.geometry.build_pyramid(x, 2)
        return [home, opened, lab, equal, clahe, quaternion, *pyramid]

    call = compile(work)
    return lambda: call(torch.rand(1, 3, 32, 32), torch.rand(1, 8, 2) * 30)


def kornia_losses(compile: Compile) -> Step:
    import kornia.losses as L
    import torch

    focal, dice, hausdorff, lovasz = (
        L.FocalLoss(0.5, reduction="mean"),
        L.DiceLoss(),
        L.HausdorffERLoss(k=3),
        L.LovaszSoftmaxLoss(),
    )

    def work(out: Any, y: Any) -> Any:
        return [
            focal(out, y),
            dice(out, y),
            hausdorff(out, y[:, None]),
            lovasz(out, y),
            L.charbonnier_loss(out, out * 0.5).mean(),
            L.psnr_loss(out, out * 0.9, 1.0),
        ]

    call = compile(work)

    def step() -> Any:
        out = torch.randn(2, 3, 12, 12, requires_grad=True)
        found = call(out, torch.randint(0, 3, (2, 12, 12)))
        sum(found).backward()
        return [*found, out.grad]

    return step


def medical_transforms(kind: str) -> Any:
    def make(compile: Compile) -> Step:
        import monai.transforms as m
        import torch

        if kind == "intensity":
            change = m.Compose(
                [
                    m.ScaleIntensity(),
                    m.NormalizeIntensity(channel_wise=True),
                    m.GaussianSmooth(1.0),
                    m.ThresholdIntensity(0.1),
                    m.Rotate90(1),
                ]
            )
        elif kind == "spatial":
            change = m.Compose(
                [
                    m.Flip(0),
                    m.Zoom(1.2, keep_size=True),
                    m.SpatialPad((20, 20)),
                    m.CenterSpatialCrop((10, 10)),
                    m.Resize((12, 12)),
                ]
            )
        else:
            change = m.Compose([m.Activations(softmax=True), m.AsDiscrete(argmax=True, to_onehot=3)])
        call = compile(change)
        torch.manual_seed(0)  # the first import of the package draws
        x = torch.rand(3, 16, 16)
        return lambda: torch.as_tensor(call(x)).as_subclass(torch.Tensor)

    return make


def medical_metrics(compile: Compile) -> Step:
    import monai.losses as losses
    import monai.metrics as metrics
    import torch

    dice, hausdorff, confusion = (
        metrics.DiceMetric(),
        metrics.HausdorffDistanceMetric(),
        metrics.ConfusionMatrixMetric(metric_name="sensitivity"),
    )
    generalized, tversky, focal = (
        losses.GeneralizedDiceLoss(sigmoid=True),
        losses.TverskyLoss(sigmoid=True),
        losses.DiceFocalLoss(sigmoid=True),
    )

    def measure(a: Any, b: Any) -> Any:
        found = [generalized(a, b), tversky(a, b), focal(a, b)]
        hard = (a > 0).float()
        return [*found, dice(hard, b), hausdorff(hard, b), confusion(hard, b)]

    call = compile(measure)
    return lambda: [
        torch.as_tensor(each) for each in call(torch.randn(2, 1, 12, 12), (torch.rand(2, 1, 12, 12) > 0.5).float())
    ]


PROGRAMS: dict[str, Program] = {
    "torchvision RetinaNet training": Program("torchvision", detection_training(retina)),
    "torchvision Faster R-CNN training": Program("torchvision", detection_training(two_stage_detector), fast=False),
    "torchvision FCOS training": Program("torchvision", detection_training(fully_convolutional_detector)),
    "torchvision transforms": Program("torchvision", augmented, steps=5),
    "torchvision mixed batches": Program("torchvision", mixed_batches, steps=5),
    "torchvision LR-ASPP training": Program(
        "torchvision",
        of_torchvision("segmentation.lraspp_mobilenet_v3_large", (2, 3, 64, 64), weights_backbone=None, num_classes=3),
        fast=False,
    ),
    "torchvision ShuffleNet training": Program(
        "torchvision", of_torchvision("shufflenet_v2_x0_5", (2, 3, 64, 64), num_classes=3), fast=False
    ),
    "torchvision GoogLeNet training": Program(
        "torchvision",
        of_torchvision("googlenet", (2, 3, 64, 64), num_classes=3, aux_logits=False, init_weights=False),
        fast=False,
    ),
    "torchvision RAFT": Program("torchvision", computed(optical_flow), fast=False),
    "timm test models training": Program(
        "timm", of_timm("test_byobnet", "test_convnext", "test_nfnet", "test_mambaout"), fast=False, tolerance=1e-2
    ),
    "timm test models training 2": Program(
        "timm",
        of_timm("test_vit2", "test_vit3", "test_vit4", "test_efficientnet_evos", "test_efficientnet_gn"),
        fast=False,
        tolerance=1e-2,
    ),
    "timm training recipe": Program("timm", timm_extras),
    "diffusers VQ model training": Program(
        "diffusers",
        of_diffusers(
            "VQModel",
            lambda t: {"sample": t.randn(2, 3, 16, 16)},
            block_out_channels=(8,),
            norm_num_groups=4,
            num_vq_embeddings=16,
        ),
    ),
    "diffusers PixArt training": Program(
        "diffusers",
        of_diffusers(
            "PixArtTransformer2DModel",
            lambda t: {
                "hidden_states": t.randn(2, 4, 8, 8),
                "encoder_hidden_states": t.randn(2, 5, 16),
                "timestep": t.tensor([3, 4]),
                "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            },
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            cross_attention_dim=16,
            sample_size=8,
            caption_channels=16,
            use_additional_conditions=False,
        ),
    ),
    "diffusers SD3 training": Program(
        "diffusers",
        of_diffusers(
            "SD3Transformer2DModel",
            lambda t: {
                "hidden_states": t.randn(2, 4, 8, 8),
                "encoder_hidden_states": t.randn(2, 5, 16),
                "pooled_projections": t.randn(2, 16),
                "timestep": t.tensor([3, 4]),
            },
            sample_size=8,
            patch_size=2,
            in_channels=4,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=16,
            caption_projection_dim=16,
            pooled_projection_dim=16,
            out_channels=4,
        ),
    ),
    "diffusers pipeline": Program("diffusers", pipeline),
    "diffusers averaged training": Program("diffusers", averaged_diffusion, steps=4),
    "segmentation-models losses": Program("segmentation-models-pytorch", segmentations),
    "kornia augmentation of several inputs": Program("kornia", augmentation_pipeline),
    "kornia parts": Program("kornia", kornia_parts),
    "kornia segmentation losses": Program("kornia", kornia_losses),
    **{
        f"MONAI {kind} transforms": Program("monai", medical_transforms(kind))
        for kind in ("intensity", "spatial", "label")
    },
    "MONAI metrics": Program("monai", medical_metrics),
}
