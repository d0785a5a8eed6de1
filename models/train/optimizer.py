"""Muon for the matrices between hidden states, AdamW for everything else, one schedule for both."""

import torch
from torch import nn


class Optimizers:
    """Both optimizers behind one step, with the learning rate as a function of the step alone."""

    def __init__(self, model: nn.Module, config: dict):
        matrices, rest = [], []
        for name, parameter in model.named_parameters():
            outer = name.endswith(("embeddings.weight", "lm_head.weight", "gate.weight"))
            (matrices if parameter.ndim == 2 and not outer else rest).append(parameter)
        decayed = [p for p in rest if p.ndim == 2]
        plain = [p for p in rest if p.ndim != 2]
        groups = [
            {"params": decayed, "weight_decay": config["weight_decay"]},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.parameters = [*matrices, *rest]
        self.muon = torch.optim.Muon(
            matrices, weight_decay=config["weight_decay"], adjust_lr_fn="match_rms_adamw"
        )
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10)
        self.peak = config["learning_rate"]
        self.final = config["final_learning_rate"]
        self.warmup = config["warmup_steps"]
        self.steps = config["steps"]

    def learning_rate(self, step: int) -> float:
        """Linear warm-up to the peak, then linear decay to the final rate."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        left = (self.steps - step) / max(self.steps - self.warmup, 1)
        return self.final + (self.peak - self.final) * left

    def step(self, step: int) -> float:
        """Applies and clears the gradients; returns the gradient norm before clipping to 1."""
        norm = nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in (self.muon, self.adam):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
            optimizer.step()
            optimizer.zero_grad()
        return float(norm)

    def state_dict(self) -> dict:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
