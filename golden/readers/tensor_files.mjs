// Reads and writes safetensors files: Node, no packages.
//     const { tensors, metadata } = read("in.safetensors");  tensors.x.get(0)
//     const p = tensor(tensors.x.dtype, tensors.x.shape);  p.set(0, 0.5);  write("out.safetensors", { p })
import { readFileSync, writeFileSync } from "node:fs";

const WIDTH = { F64: 8, I64: 8, U64: 8, F32: 4, I32: 4, U32: 4, F16: 2, BF16: 2, I16: 2, U16: 2, I8: 1, U8: 1, BOOL: 1 };
const HALF = { F16: [10, 15], BF16: [7, 127] };                         // bits of fraction, bias of the exponent
const VIEW = { F64: "Float64", F32: "Float32", I64: "BigInt64", U64: "BigUint64", I32: "Int32", U32: "Uint32", I16: "Int16", U16: "Uint16",
               F16: "Uint16", BF16: "Uint16", I8: "Int8", U8: "Uint8", BOOL: "Uint8" };

export function tensor(dtype, shape, bytes) {
  const count = shape.reduce((a, b) => a * b, 1), width = WIDTH[dtype];
  const data = bytes ?? new Uint8Array(count * width), view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const get = (i) => {
    const raw = view[`get${VIEW[dtype]}`](i * width, true);
    return HALF[dtype] ? fromHalf(raw, ...HALF[dtype]) : Number(raw);
  };
  const set = (i, x) => {
    const raw = HALF[dtype] ? toHalf(x, ...HALF[dtype]) : VIEW[dtype].startsWith("Big") ? BigInt(x) : x;
    view[`set${VIEW[dtype]}`](i * width, raw, true);
  };
  return { dtype, shape, count, data, get, set };
}

function fromHalf(code, fraction, bias) {
  const exponent = (code & 0x7fff) >> fraction, low = code & ((1 << fraction) - 1);
  const size = exponent === 2 * bias + 1 ? (low ? NaN : Infinity)
    : (low + (exponent ? 2 ** fraction : 0)) * 2 ** ((exponent || 1) - bias - fraction);
  return code & 0x8000 ? -size : size;
}

function toHalf(x, fraction, bias) {                                    // the inverse, rounded to nearest, ties to even
  const sign = Object.is(x, -0) || x < 0 ? 0x8000 : 0, infinite = (2 * bias + 1) << fraction;
  if (Number.isNaN(x)) return infinite + 1;
  if (!Number.isFinite(x)) return sign | infinite;
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, x);
  const exponent = Math.max(((bits.getUint16(0) >> 4) & 0x7ff) - 1023, 1 - bias);
  const scaled = Math.abs(x) * 2 ** (fraction - exponent), up = Math.round(scaled);
  const code = (up - scaled === 0.5 && up % 2 ? up - 1 : up) + ((exponent + bias - 1) << fraction);
  return sign | Math.min(code, infinite);
}

export function read(path) {
  const file = readFileSync(path), start = 8 + Number(file.readBigUInt64LE(0));
  const { __metadata__: metadata = {}, ...entries } = JSON.parse(file.toString("utf8", 8, start));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    tensors[name] = tensor(dtype, shape, file.subarray(start + from, start + to));
  }
  return { tensors, metadata };
}

export function write(path, tensors) {
  const header = {}, parts = [];
  let at = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.byteLength] };
    parts.push(data);
    at += data.byteLength;
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([length, text, ...parts]));
}
