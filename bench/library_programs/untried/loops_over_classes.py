"""The most telling of the programs that loops over a library's classes wrote: losses, likelihoods, adapters, models."""

from __future__ import annotations

import itertools
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step

SIZES = (4, 4, 6, 8)
"""Of the batches, one after the other."""


def loss_of_torchrl(name: str, discrete: bool = False) -> Any:
    """A loss over several networks, which are mapped over, then its optimizer's step."""

    def make(compile: Compile) -> Step:
        import torch
        from tensordict import TensorDict
        from tensordict.nn import NormalParamExtractor, TensorDictModule
        from torchrl import objectives
        from torchrl.data import Bounded, OneHot
        from torchrl.modules import OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator

        class Quality(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(7, 1)

            def forward(self, observation: Any, action: Any) -> Any:
                return self.layer(torch.cat([observation, action], -1))

        if discrete:
            scores = TensorDictModule(torch.nn.Linear(3, 4), in_keys=["observation"], out_keys=["logits"])
            options: dict[str, Any] = {"distribution_class": OneHotCategorical, "spec": OneHot(4)}
            actor = ProbabilisticActor(scores, in_keys=["logits"], out_keys=["action"], **options)
            quality = ValueOperator(torch.nn.Linear(3, 4), in_keys=["observation"], out_keys=["action_value"])
            loss = getattr(objectives, name)(actor, quality, action_space="one-hot", num_actions=4)
        else:
            net = torch.nn.Sequential(torch.nn.Linear(3, 8), NormalParamExtractor())
            module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
            bounds = Bounded(-torch.ones(4), torch.ones(4), (4,))
            options = {"distribution_class": TanhNormal, "return_log_prob": True, "spec": bounds}
            actor = ProbabilisticActor(module, in_keys=["loc", "scale"], **options)
            value = ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])
            quality = ValueOperator(Quality(), in_keys=["observation", "action"])
            more = {"action_spec": bounds} if name == "REDQLoss" else {}
            loss = getattr(objectives, name)(actor, value if name == "KLPENPPOLoss" else quality, **more)
        optimizer = torch.optim.Adam([p for p in loss.parameters() if p.requires_grad], 1e-2)
        call, sizes = compile(loss), itertools.cycle(SIZES)

        def batch(size: int) -> Any:
            action = torch.eye(4)[torch.randint(4, (size,))].long() if discrete else torch.rand(size, 4) - 0.5
            ends = torch.zeros(size, 1, dtype=torch.bool)
            following = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": ends}
            data = {"observation": torch.randn(size, 3), "action": action, "action_log_prob": torch.randn(size)}
            data |= {"loc": torch.randn(size, 4), "scale": torch.rand(size, 4) + 0.1}
            return TensorDict({**data, "next": {**following, "terminated": ends.clone()}}, [size])

        def step() -> Any:
            optimizer.zero_grad()
            out = call(batch(next(sizes)))
            losses = [out[key] for key in sorted(out.keys()) if key.startswith("loss_")]
            sum(losses).backward()
            optimizer.step()
            return [each.detach() for each in losses]

        return step

    return make


def mixed_values(compile: Compile) -> Step:
    """QMIX: agents that share a network, and one that mixes their values."""
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import QValueModule, SafeSequential
    from torchrl.modules.models.multiagent import MultiAgentMLP, QMixer
    from torchrl.objectives import QMixerLoss

    keys = [("agents", key) for key in ("observation", "action_value", "action", "chosen_action_value")]
    shared = MultiAgentMLP(5, 3, n_agents=4, centralised=False, share_params=True, depth=1, num_cells=8)
    chosen = QValueModule(action_value_key=keys[1], out_keys=[keys[2], *keys[1::2]], action_space="categorical")
    agents = SafeSequential(TensorDictModule(shared, in_keys=keys[:1], out_keys=keys[1:2]), chosen)
    mixing = QMixer(state_shape=(8,), mixing_embed_dim=8, n_agents=4, device="cpu")
    mixer = TensorDictModule(mixing, in_keys=[keys[3], "state"], out_keys=["chosen_action_value"])
    loss = QMixerLoss(agents, mixer, action_space="categorical")
    loss.set_keys(action_value=keys[1], local_value=keys[3], global_value="chosen_action_value", action=keys[2])
    loss.make_value_estimator(gamma=0.9)
    call, sizes = compile(loss), itertools.cycle(SIZES)

    def batch(size: int) -> Any:
        def state() -> dict[str, Any]:
            return {
                "agents": TensorDict({"observation": torch.randn(size, 4, 5)}, [size]),
                "state": torch.randn(size, 8),
            }

        data, ends = state(), torch.zeros(size, 1, dtype=torch.bool)
        data["agents"]["action"] = torch.randint(3, (size, 4))
        following = {**state(), "reward": torch.randn(size, 1), "done": ends, "terminated": ends.clone()}
        return TensorDict({**data, "next": TensorDict(following, [size])}, [size])

    return training_step(lambda: call(batch(next(sizes)))["loss"], loss, gradients=True)


def heavy_tails(compile: Compile) -> Step:
    """A variational Gaussian process by natural gradients, with a Student-t likelihood."""
    import gpytorch
    import torch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, points: Any) -> None:
            natural = gpytorch.variational.NaturalVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, natural))
            self.mean = gpytorch.means.LinearMean(2)
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model, likelihood = Process(torch.rand(5, 2)), gpytorch.likelihoods.StudentTLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=40)
    call, sizes = compile(lambda x, y: -bound(model(x), y)), itertools.cycle(SIZES)

    def loss() -> Any:
        size = next(sizes)
        return call(torch.rand(size, 2), torch.randn(size))

    return training_step(loss, torch.optim.Adam([*model.parameters(), *likelihood.parameters()], 0.05))


def sparse_adapters(compile: Compile) -> Step:
    import peft
    import torch
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    adapters = peft.ShiraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)
    call, rows = compile(model), itertools.cycle(SIZES)

    def loss() -> Any:
        ids = torch.randint(3, 60, (next(rows), 12))
        return call(input_ids=ids, labels=ids).loss

    return training_step(loss, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2))


def video_transformer(compile: Compile) -> Step:
    import torch
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)  # the import draws
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4}
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), text_dim=8, freq_dim=16, ffn_dim=16, num_layers=2, **sizes
    ).eval()
    call, rows = compile(model), itertools.cycle((2, 2, 3))

    def answer() -> Any:
        size = next(rows)
        text = torch.randn(size, 4, 8)
        return call(torch.randn(size, 4, 2, 8, 8), torch.tensor([5] * size), text, return_dict=False)[0]

    return inference_step(answer)


PROGRAMS: dict[str, Program] = {
    **{
        f"TorchRL {name}": Program("torchrl", loss_of_torchrl(name)) for name in ("KLPENPPOLoss", "REDQLoss", "CQLLoss")
    },
    "TorchRL DiscreteSACLoss": Program("torchrl", loss_of_torchrl("DiscreteSACLoss", discrete=True)),
    "TorchRL QMixerLoss": Program("torchrl", mixed_values),
    "GPyTorch natural gradients, heavy tails": Program("gpytorch", heavy_tails),
    "PEFT ShiRA training": Program("peft", sparse_adapters),
    "diffusers Wan": Program("diffusers", video_transformer),
}
