"""The published pruning run, with settings of our own: a 2-64-64-2 ReLU classifier of two moons, pruned and tuned in PyTorch.

The published figures are those of one training run, whose data, optimizer, steps and seed are not given. Here the same is done for 24
seeds with settings that are: 1,000 points for training and 1,000 others for the accuracy, noise 0.15, PyTorch's own initial weights,
Adam at 3e-3 for 120 steps of all points; then masks by the oracle, and 200 steps under them. Prints what the seeds gave beside what was
published:

    python tests/reference/test_pruning_run.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import prune_magnitude

pytestmark = pytest.mark.peers

SEEDS, POINTS, NOISE, LEARNING_RATE, STEPS, TUNING = 24, 1000, 0.15, 3e-3, 120, 200
CUTS = [(sparsity, scope) for sparsity in (0.5, 0.8, 0.9, 0.95) for scope in ("global", "layer")]
# accuracy before and after tuning; 50 % is said to be free: as before pruning
PUBLISHED = {
    (0.5, "global"): (0.99, 0.99), (0.5, "layer"): (0.99, 0.99), (0.8, "global"): (0.962, 0.984), (0.8, "layer"): (0.723, 0.989),
    (0.9, "global"): (0.5, 0.5), (0.9, "layer"): (0.602, 0.866), (0.95, "global"): (0.5, 0.5), (0.95, "layer"): (0.754, 0.888),
}  # fmt: skip
# In the published run 90 % over all weights deletes the output layer. Ours keep some of it at 90 %, and several lose it at 95 %.
NOT_SEEN = (0.9, "global")


def moons(n: int) -> Any:
    """Two half circles with noise, and which of the two."""
    import torch

    t, c = torch.pi * torch.rand(n), torch.arange(n) % 2
    x = torch.stack([torch.where(c == 0, t.cos(), 1 - t.cos()), torch.where(c == 0, t.sin(), 0.5 - t.sin())], 1)
    return x + NOISE * torch.randn(n, 2), c


def run(seed: int) -> dict[Any, Any]:
    """Accuracy of the network; for each cut the accuracy before and after tuning, and the masks."""
    import torch

    torch.manual_seed(seed)
    (x, y), (unseen, labels) = moons(POINTS), moons(POINTS)
    net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    layers = [layer.weight for layer in net if isinstance(layer, torch.nn.Linear)]

    def train(steps: int, masks: Any) -> float:
        """The accuracy after so many steps, weights without a mask set to 0 before the first and after each."""
        adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
        for step in range(steps + 1):
            if step:
                adam.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                adam.step()
            with torch.no_grad():
                for w, mask in zip(layers, masks):
                    w.mul_(torch.from_numpy(mask))
        return (net(unseen).argmax(1) == labels).double().mean().item()

    found: dict[Any, Any] = {"whole": train(STEPS, [np.ones(tuple(w.shape), bool) for w in layers])}
    trained = {name: x.clone() for name, x in net.state_dict().items()}
    weights = [w.detach().numpy().copy() for w in layers]
    for sparsity, scope in CUTS:
        net.load_state_dict(trained)
        masks = prune_magnitude(weights, sparsity=sparsity, scope=scope, rule="quantile")
        found[sparsity, scope] = train(0, masks), train(TUNING, masks), masks
    return found


def all_runs() -> list[dict[Any, Any]]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)                                                    # sums in one order; and no faster with more
    try:
        return [run(seed) for seed in range(SEEDS)]
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs() -> list[dict[Any, Any]]:
    return all_runs()


def test_the_accuracy_of_the_whole_network_is_met(runs: list[dict[Any, Any]]) -> None:
    assert min(one["whole"] for one in runs) <= 0.99 <= max(one["whole"] for one in runs)


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut != NOT_SEEN])
@pytest.mark.parametrize("tuned", [0, 1])
def test_a_published_accuracy_lies_within_what_the_seeds_give(runs: list[dict[Any, Any]], cut: Any, tuned: int) -> None:
    seen = [one[cut][tuned] for one in runs]
    assert min(seen) <= PUBLISHED[cut][tuned] <= max(seen)


def test_no_layer_is_emptied_by_itself_and_a_network_without_output_weights_guesses(runs: list[dict[Any, Any]]) -> None:
    guessing = 0
    for one in runs:
        for cut in CUTS:
            untuned, tuned, masks = one[cut]
            if cut[1] == "layer":
                assert all(mask.any() for mask in masks)
            elif not masks[2].any():
                assert untuned == tuned == 0.5
                guessing += 1
    assert guessing


def test_one_threshold_costs_less_than_one_a_layer_before_tuning(runs: list[dict[Any, Any]]) -> None:
    """What the published 0.9620 and 0.7230 say, in nine of ten runs and more."""
    drops = [one[0.8, "global"][0] - one[0.8, "layer"][0] for one in runs]
    assert sum(drop > 0 for drop in drops) > 0.9 * SEEDS


def table(runs: list[dict[Any, Any]]) -> str:
    """What was published and what the seeds gave, least to most."""
    lines = ["| weights pruned | published: before, after | ours: before | after | no output weight left |", "|---|---|---|---|---|"]
    for cut in CUTS:
        before, after, masks = zip(*(one[cut] for one in runs))
        said = "free" if cut[0] == 0.5 else "{:.4f}, {:.4f}".format(*PUBLISHED[cut])
        what = f"{cut[0]:.0%} {'of all' if cut[1] == 'global' else 'of each layer'}"
        emptied = f"{sum(not mask[2].any() for mask in masks)} of {len(runs)}"
        ours = " | ".join(f"{min(seen):.3f} to {max(seen):.3f}" for seen in (before, after))
        lines.append(f"| {what} | {said} | {ours} | {emptied} |")
    whole = [one["whole"] for one in runs]
    return "\n".join([f"Before pruning: published 0.9900, ours {min(whole):.3f} to {max(whole):.3f}.", "", *lines])


if __name__ == "__main__":
    import torch

    print(f"PyTorch {torch.__version__}, seeds 0 to {SEEDS - 1}\n\n{table(all_runs())}")
