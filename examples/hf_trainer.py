"""Hugging Face's Trainer on several processes, which compiles by torch.compile with argand as its backend.

torchrun --nproc-per-node=2 examples/hf_trainer.py --output_dir out --max_steps 20 --torch_compile_backend argand

Any argument of `transformers.TrainingArguments` is taken. Each process prints a digest of the parameters, which is the
same on all of them. On a machine without a GPU say `--use_cpu`.
"""

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

from argand.hosts import tell_accelerate


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more) -> None:  # type: ignore[no-untyped-def]
        if logs and "loss" in logs:
            print(f"rank {args.process_index} step {state.global_step}: loss {float(logs['loss']):.4f}", flush=True)


def main() -> None:
    tell_accelerate()
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )
    rows = [(torch.arange(16) * (1 + n % 3) + n) % 64 for n in range(64)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Losses()])
    trainer.train()
    digest = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(f"rank {arguments.process_index} parameters {digest:.6f}\n", end="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
