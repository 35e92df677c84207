"""What attention moves and computes, counted: bytes of device memory and floating-point operations, with and without tiles."""

from __future__ import annotations

from dataclasses import dataclass

from . import arguments


@dataclass(frozen=True)
class AttentionTraffic:
    """Counts for one layer of attention; a multiply-add is two FLOPs, softmax and scaling are not counted.

    score_entries           B H L^2, the entries of all score matrices; score_entries_per_head is L^2
    block_q, block_k        rows of Q and of K in a tile that fits on the chip
    …_hbm_bytes, …_flops    standard or tiled, forward or backward
    """

    score_entries: int
    score_entries_per_head: int
    block_q: int
    block_k: int
    standard_forward_hbm_bytes: int
    standard_backward_hbm_bytes: int
    tiled_forward_hbm_bytes: int
    tiled_backward_hbm_bytes: int
    standard_forward_flops: int
    standard_backward_flops: int
    tiled_forward_flops: int
    tiled_backward_flops: int

    @property
    def standard_hbm_bytes(self) -> int:
        return self.standard_forward_hbm_bytes + self.standard_backward_hbm_bytes

    @property
    def tiled_hbm_bytes(self) -> int:
        return self.tiled_forward_hbm_bytes + self.tiled_backward_hbm_bytes

    @property
    def standard_flops(self) -> int:
        return self.standard_forward_flops + self.standard_backward_flops

    @property
    def tiled_flops(self) -> int:
        return self.tiled_forward_flops + self.tiled_backward_flops


def memory_traffic(B: int, H: int, L: int, D: int, *, sram_bytes: int, element_bytes: int) -> AttentionTraffic:
    """Device memory traffic (HBM, bytes) and FLOPs of self-attention, standard and tiled, forward and backward.

        standard forward     4 N D + 4 N^2 elements   read Q, K, write S; read S, write P; read P, V, write O
        standard backward    8 N D + 7 N^2 elements   the same for dV = P^T dO, dP = dO V^T, dS, dQ = dS K, dK = dS^T Q
        tiled forward        2 N D + T (3 N D + 4 N)  K and V once, in each of T passes O read and written, Q read, m and l
        tiled backward       4 N D + T (5 N D + 2 N)  K, V, dK, dV once; in each pass Q, O, dO read, dQ read and written
        T = ceil(N / block_k),   block_k = ceil(M / 4D),   block_q = min(block_k, D)

    N = L, M = sram_bytes / element_bytes elements on chip; m and l count as elements, setting zeros as nothing.
    Standard Theta(N D + N^2), tiled Theta(N^2 D^2 / M). FLOPs: matrix products of 2 N^2 D each, 2 forward and 4
    backward, one more backward in tiles to make P anew: 12 and 14 B H N^2 D in all. Exact integers. Not causal, no
    dropout, Dv = D.

    >>> published = memory_traffic(64, 16, 1024, 64, sram_bytes=192 * 1024, element_bytes=2)
    >>> round(published.standard_flops / 1e9, 1), round(published.tiled_flops / 1e9, 1)
    (824.6, 962.1)
    >>> memory_traffic(1, 1, 4096, 64, sram_bytes=192 * 1024, element_bytes=2).score_entries_per_head
    16777216

    One published example of that size quotes 66.6 and 75.2 GFLOP: no count of the two passes of one layer gives them.
    Raises ValueError for a size below 1 (L may be 0) and TypeError for what is no whole number.
    Source: Dao et al. 2022 (arXiv 2205.14135), algorithms 0, 1, 3 and 4, theorems 2 and 5.
    """
    B, H, D = (arguments.whole_number(name, n, least=1) for name, n in (("B", B), ("H", H), ("D", D)))
    N = arguments.whole_number("L", L, least=0)
    element_bytes = arguments.whole_number("element_bytes", element_bytes, least=1)
    M = arguments.whole_number("sram_bytes", sram_bytes, least=element_bytes) // element_bytes
    block_k = -(-M // (4 * D))
    block_q = min(block_k, D)
    T = -(-N // block_k)
    elements = {"standard_forward": 4 * N * D + 4 * N * N, "standard_backward": 8 * N * D + 7 * N * N,
                "tiled_forward": 2 * N * D + T * (3 * N * D + 4 * N), "tiled_backward": 4 * N * D + T * (5 * N * D + 2 * N)}
    products = {"standard_forward": 2, "standard_backward": 4, "tiled_forward": 2, "tiled_backward": 5}
    return AttentionTraffic(
        score_entries=B * H * N * N, score_entries_per_head=N * N, block_q=block_q, block_k=block_k,
        **{f"{name}_hbm_bytes": B * H * n * element_bytes for name, n in elements.items()},
        **{f"{name}_flops": B * H * n * 2 * N * N * D for name, n in products.items()})
