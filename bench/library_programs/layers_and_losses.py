"""More of layers, losses, metrics and attributions: timm, PyG, kornia, MONAI, TorchRL, tensordict, captum."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def timm_layers(compile: Compile) -> Step:
    import torch
    from timm import layers

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = layers.ConvNormAct(3, 8, 3, stride=2)
            self.block = torch.nn.Sequential(layers.SqueezeExcite(8), layers.BlurPool2d(8), layers.EcaModule(8))
            self.patches = layers.PatchEmbed(img_size=8, patch_size=2, in_chans=8, embed_dim=16)
            self.mix = layers.Mlp(16, 32, drop=0.1)
            self.drop = layers.DropPath(0.2)
            self.head = layers.ClassifierHead(8, 4)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            x = self.block(self.stem(x))
            tokens = self.patches(x)
            return [self.head(x), tokens + self.drop(self.mix(tokens))]

    model = Net()
    images = torch.randn(2, 3, 32, 32)
    call = compile(model)

    def loss_of() -> tuple[torch.Tensor, ...]:
        logits, tokens = call(images)
        return logits.square().sum() + tokens.sum(), logits, tokens

    return training_step(loss_of, model, gradients=True)


def message_passing(compile: Compile) -> Step:
    import torch
    from torch_geometric.nn import MessagePassing
    from torch_geometric.utils import add_self_loops, degree, softmax

    class Layer(MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.linear = torch.nn.Linear(6, 6)
            self.score = torch.nn.Linear(12, 1, bias=False)  # which softmax takes out: its gradient is rounding alone

        def forward(self, x, edges):  # type: ignore[no-untyped-def]
            edges, _ = add_self_loops(edges, num_nodes=x.size(0))
            norm = degree(edges[1], x.size(0), dtype=x.dtype).pow(-0.5)
            return self.propagate(edges, x=self.linear(x), norm=norm[edges[0]] * norm[edges[1]])

        def message(self, x_i, x_j, norm, index, size_i):  # type: ignore[no-untyped-def]  # PyG evaluates annotations
            weight = softmax(self.score(torch.cat([x_i, x_j], -1)), index, num_nodes=size_i)
            return norm.view(-1, 1) * weight * x_j

    layer, x, edges = Layer(), torch.randn(10, 6), torch.randint(0, 10, (2, 30))
    call = compile(layer)

    def loss_of() -> tuple[torch.Tensor, torch.Tensor]:
        out = call(x, edges)
        return out.sum(), out

    return training_step(loss_of, layer, gradients=True)


def image_features(compile: Compile) -> Step:
    import kornia
    import torch

    images = torch.rand(1, 1, 24, 24)

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        corners = kornia.feature.harris_response(x)
        best = kornia.geometry.subpix.nms2d(corners, (3, 3))
        equal = kornia.enhance.equalize(x)
        shape = torch.eye(3)[None] + 0.01
        warped = kornia.geometry.transform.warp_perspective(x, shape, (20, 20))
        return [best, equal, warped, kornia.morphology.dilation(x, torch.ones(3, 3))]

    call = compile(forward)
    return lambda: call(images)


def lightning_training_step(compile: Compile) -> Step:
    import lightning
    import torch
    import torchmetrics

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
            self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            logits = self.net(x)
            self.accuracy.update(logits, y)
            loss = torch.nn.functional.cross_entropy(logits, y)
            self.log("loss", loss)
            return loss

    module = Module()
    x, y = torch.randn(10, 8), torch.randint(0, 3, (10,))
    call = compile(module.training_step)

    def step() -> list[torch.Tensor]:
        module.zero_grad()
        loss = call((x, y), 0)
        loss.backward()
        return [loss.detach(), module.accuracy.compute(), *(p.grad for p in module.net.parameters())]

    return step


def medical_losses(compile: Compile) -> Step:
    import torch
    from monai.losses import DiceCELoss, FocalLoss, SSIMLoss, TverskyLoss

    dice, focal = DiceCELoss(to_onehot_y=True, softmax=True), FocalLoss(to_onehot_y=True)
    similar, tversky = SSIMLoss(2, win_size=5), TverskyLoss(to_onehot_y=True, softmax=True)
    logits, labels = torch.randn(2, 3, 12, 12), torch.randint(0, 3, (2, 1, 12, 12))

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return dice(x, labels) + focal(x, labels) + tversky(x, labels) + similar(x.sigmoid(), x.sigmoid() * 0.9)

    call = compile(loss_of)

    def step() -> list[torch.Tensor]:
        x = logits.clone().requires_grad_()
        loss = call(x)
        loss.backward()
        return [loss.detach(), x.grad]

    return step


def actor_and_critic(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ValueOperator
    from torchrl.objectives import DDPGLoss

    actor = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])

    class Value(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(6, 1)

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([observation, action], -1))

    loss_module = DDPGLoss(actor, ValueOperator(Value(), in_keys=["observation", "action"]))
    loss_module.make_value_estimator(gamma=0.9)
    data = TensorDict(
        {
            "observation": torch.randn(8, 4),
            "action": torch.randn(8, 2),
            "next": {
                "observation": torch.randn(8, 4),
                "reward": torch.randn(8, 1),
                "done": torch.zeros(8, 1, dtype=torch.bool),
                "terminated": torch.zeros(8, 1, dtype=torch.bool),
            },
        },
        [8],
    )
    call = compile(loss_module)

    def loss_of() -> tuple[torch.Tensor, ...]:
        losses = call(data.clone())
        actor, value = losses["loss_actor"], losses["loss_value"]
        return actor + value, actor, value

    return training_step(loss_of, loss_module)


def dictionaries(compile: Compile) -> Step:
    import torch
    from tensordict import TensorDict

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        data = TensorDict({"a": x, "b": {"c": x + 1}}, [x.shape[0]])
        doubled = data.apply(lambda t: t * 2)
        both = torch.stack([data, doubled])
        flat = both.flatten_keys(".")
        part = flat[:, :2].clone()
        part["d"] = part["a"].sum(-1)
        return dict(part.exclude("b.c").items()) | {"c": both["b", "c"].mean(0)}

    call = compile(forward)
    values = torch.randn(4, 3)
    return lambda: call(values)


def pyramid(compile: Compile) -> Step:
    import segmentation_models_pytorch as smp
    import torch

    model = smp.FPN("resnet18", encoder_weights=None, classes=2, decoder_dropout=0.0)
    losses = [
        smp.losses.JaccardLoss("multiclass"),
        smp.losses.FocalLoss("multiclass"),
        smp.losses.LovaszLoss("multiclass"),
    ]
    x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        return sum(loss(logits, y) for loss in losses)

    call = compile(loss_of)
    return training_step(lambda: call(x, y), model)


def equivariant_layers(compile: Compile) -> Step:
    import torch
    from e3nn import nn, o3

    gate = nn.Gate("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
    linear = o3.Linear("4x0e + 2x1o", gate.irreps_in)
    norm = nn.BatchNorm(gate.irreps_out)
    x = torch.randn(6, 10)

    def forward(x: torch.Tensor) -> torch.Tensor:
        rotation = o3.Irreps("4x0e + 2x1o").D_from_angles(torch.tensor(0.3), torch.tensor(0.1), torch.tensor(0.2))
        return norm(gate(linear(x @ rotation.T)))

    call = compile(forward)

    def loss_of() -> tuple[torch.Tensor, torch.Tensor]:
        out = call(x)
        return out.square().sum(), out

    return training_step(loss_of, linear, gradients=True)


def attributions(name: str, **options: Any) -> Any:
    """A program that attributes with a method of captum's."""

    def make(compile: Compile) -> Step:
        import captum.attr
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
        inputs = torch.randn(4, 8)
        attribute = compile(getattr(captum.attr, name)(model).attribute)

        def step() -> torch.Tensor:
            found = attribute(inputs.clone().requires_grad_(), target=1, **options)
            return found.detach()

        return step

    return make


def layer_attribution(compile: Compile) -> Step:
    import torch
    from captum.attr import LayerGradCam

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3)
    ).eval()
    images = torch.randn(2, 1, 8, 8)
    attribute = compile(LayerGradCam(model, model[0]).attribute)
    return lambda: attribute(images, target=1).detach()


def curves(compile: Compile) -> Step:
    import torch
    from torchmetrics.classification import BinaryAUROC, BinaryCalibrationError, MultilabelF1Score
    from torchmetrics.functional import cohen_kappa, matthews_corrcoef

    scores, target = torch.rand(20), torch.randint(0, 2, (20,))
    labels = torch.randint(0, 2, (20, 3))
    curve, error, f1 = BinaryAUROC(thresholds=10), BinaryCalibrationError(n_bins=5), MultilabelF1Score(num_labels=3)

    def update(scores: torch.Tensor) -> list[torch.Tensor]:
        curve.update(scores, target)
        error.update(scores, target)
        f1.update(scores[:, None].expand(-1, 3), labels)
        kappa = cohen_kappa(scores, target, task="binary")
        return [curve.compute(), error.compute(), f1.compute(), kappa, matthews_corrcoef(scores, target, task="binary")]

    call = compile(update)
    return lambda: call(scores)


def image_metrics(compile: Compile) -> Step:
    import torch
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure
    from torchmetrics.image import TotalVariation

    a, b = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    variation = TotalVariation()

    def measure(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        ratio = peak_signal_noise_ratio(a, b, data_range=1.0)
        similarity = structural_similarity_index_measure(a, b, data_range=1.0, kernel_size=5, sigma=1.0)
        return [ratio, similarity, variation(a)]

    call = compile(measure)
    return lambda: call(a, b)


def big_bird(compile: Compile) -> Step:
    import torch
    import transformers

    config = transformers.BigBirdConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=256, block_size=4, num_random_blocks=1, attention_type="block_sparse",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BigBirdForMaskedLM(config)
    tokens = torch.randint(0, 64, (2, 64))
    call = compile(model)
    return training_step(lambda: call(input_ids=tokens, labels=tokens).loss, model)


PROGRAMS = {
    "timm layers": Program("timm", timm_layers),
    "PyG message passing": Program("torch-geometric", message_passing),
    "kornia features": Program("kornia", image_features),
    "Lightning training step": Program("lightning", lightning_training_step, fast=False),
    "MONAI losses": Program("monai", medical_losses),
    "TorchRL DDPG loss": Program("torchrl", actor_and_critic, fast=False),
    "tensordict stacks": Program("tensordict", dictionaries),
    "segmentation-models pyramid": Program("segmentation-models-pytorch", pyramid, fast=False),
    "e3nn layers": Program("e3nn", equivariant_layers),
    "captum DeepLift": Program("captum", attributions("DeepLift")),
    "captum FeatureAblation": Program("captum", attributions("FeatureAblation")),
    "captum InputXGradient": Program("captum", attributions("InputXGradient")),
    "captum GradCAM": Program("captum", layer_attribution),
    "torchmetrics curves": Program("torchmetrics", curves, fast=False),
    "torchmetrics images": Program("torchmetrics", image_metrics),
    "transformers BigBird training": Program("transformers", big_bird, fast=False),
}
