// Answers one case of softmax: node softmax.mjs IN OUT.
import { read, tensor, write } from "./tensor_files.mjs";

const { x, axis: given } = read(process.argv[2]).tensors;
const p = tensor(x.dtype, x.shape), axis = (given.get(0) + x.shape.length) % x.shape.length;
const n = x.shape[axis], inner = x.shape.slice(axis + 1).reduce((a, b) => a * b, 1);
for (let row = 0; n && row < x.count / n; row++) {
  const at = Math.floor(row / inner) * n * inner + row % inner;          // of the row's first entry; the others stand inner apart
  const entries = Array.from({ length: n }, (_, j) => x.get(at + j * inner)), m = entries.reduce((a, b) => Math.max(a, b), -Infinity);
  if (m === -Infinity) continue;                                        // nothing but -inf: all zeros
  const l = entries.reduce((sum, entry) => sum + Math.exp(entry - m), 0);
  entries.forEach((entry, j) => p.set(at + j * inner, Math.exp(entry - m) / l));
}
write(process.argv[3], { p });
