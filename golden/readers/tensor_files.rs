// Reads and writes safetensors files: Rust (edition 2021), no crates. A damaged file panics with what is wrong.
//     let (tensors, strings) = read("in.safetensors")?;  tensors["x"].get(0)
//     let mut p = Tensor::new(&x.dtype, &x.shape);  p.set(0, 0.5);  write("out.safetensors", &[("p", &p)])?;
use std::{collections::HashMap, fs, io, str};

pub struct Tensor { pub dtype: String, pub shape: Vec<usize>, pub data: Vec<u8> }

fn width(dtype: &str) -> usize {
    match dtype { "F64" | "I64" | "U64" => 8, "F32" | "I32" | "U32" => 4, "F16" | "BF16" | "I16" | "U16" => 2, "I8" | "U8" | "BOOL" => 1,
                  _ => panic!("unknown type {dtype}") }
}

impl Tensor {
    pub fn new(dtype: &str, shape: &[usize]) -> Tensor {
        let bytes = shape.iter().product::<usize>() * width(dtype);
        Tensor { dtype: dtype.into(), shape: shape.to_vec(), data: vec![0; bytes] }
    }
    pub fn count(&self) -> usize { self.shape.iter().product() }
    pub fn get(&self, i: usize) -> f64 {
        let d = &self.data[i * width(&self.dtype)..(i + 1) * width(&self.dtype)];
        match self.dtype.as_str() {
            "F64" => f64::from_le_bytes(d.try_into().unwrap()),
            "F32" => f32::from_le_bytes(d.try_into().unwrap()).into(),
            "F16" => from_half(u16::from_le_bytes(d.try_into().unwrap()), 10, 15),
            "BF16" => from_half(u16::from_le_bytes(d.try_into().unwrap()), 7, 127),
            "I64" => i64::from_le_bytes(d.try_into().unwrap()) as f64,
            "I32" => i32::from_le_bytes(d.try_into().unwrap()).into(),
            "U8" | "BOOL" => d[0].into(),
            other => panic!("cannot get {other}"),
        }
    }
    pub fn set(&mut self, i: usize, x: f64) {
        let bytes: Vec<u8> = match self.dtype.as_str() {
            "F64" => x.to_le_bytes().into(),
            "F32" => (x as f32).to_le_bytes().into(),
            "F16" => to_half(x, 10, 15).to_le_bytes().into(),
            "BF16" => to_half(x, 7, 127).to_le_bytes().into(),
            "I64" => (x as i64).to_le_bytes().into(),
            "I32" => (x as i32).to_le_bytes().into(),
            "U8" | "BOOL" => vec![x as u8],
            other => panic!("cannot set {other}"),
        };
        let at = i * bytes.len();
        self.data[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

fn from_half(code: u16, fraction: i32, bias: i32) -> f64 {             // bits of fraction, bias of the exponent
    let (exponent, low) = ((code as i32 & 0x7fff) >> fraction, code as i32 & ((1 << fraction) - 1));
    let size = if exponent == 2 * bias + 1 { if low != 0 { f64::NAN } else { f64::INFINITY } }
               else { (low + if exponent > 0 { 1 << fraction } else { 0 }) as f64 * 2f64.powi(exponent.max(1) - bias - fraction) };
    if code & 0x8000 != 0 { -size } else { size }
}

fn to_half(x: f64, fraction: i32, bias: i32) -> u16 {                  // the inverse, rounded to nearest, ties to even
    let (sign, infinite) = (if x.is_sign_negative() { 0x8000 } else { 0 }, (2 * bias + 1) << fraction);
    if x.is_nan() { return (infinite + 1) as u16; }
    if x.is_infinite() { return (sign | infinite) as u16; }
    let exponent = (((x.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(1 - bias);
    let scaled = x.abs() * 2f64.powi(fraction - exponent);
    let up = (scaled + 0.5).floor();
    let rounded = if up - scaled == 0.5 && up % 2.0 != 0.0 { up - 1.0 } else { up };
    (sign | (rounded as i32 + ((exponent + bias - 1) << fraction)).min(infinite)) as u16
}

/// The next text in quotation marks from `at`, and the place behind it.
fn text(header: &str, at: usize) -> (String, usize) {
    let (mut out, mut p, h) = (Vec::new(), at + header[at..].find('"').expect("a name") + 1, header.as_bytes());
    while h[p] != b'"' { if h[p] == b'\\' { p += 1; } out.push(h[p]); p += 1; }
    (String::from_utf8(out).expect("UTF-8"), p + 1)
}

fn numbers(entry: &str, key: &str) -> Vec<usize> {
    let list = entry.split_once(&format!("\"{key}\"")).expect("a key").1.split_once('[').expect("a list").1;
    list[..list.find(']').expect("an end")].split(',').filter_map(|n| n.trim().parse().ok()).collect()
}

pub fn read(path: &str) -> io::Result<(HashMap<String, Tensor>, HashMap<String, String>)> {
    let file = fs::read(path)?;
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = str::from_utf8(&file[8..start]).expect("UTF-8").trim_end();
    let (mut tensors, mut strings, mut at) = (HashMap::new(), HashMap::new(), 1);
    while header[at..].contains('"') {
        let (name, mut p) = text(header, at);
        if name == "__metadata__" {
            while header.as_bytes()[p] != b'}' {                        // the next key, or the end
                let (key, behind) = text(header, p);
                let (value, end) = text(header, behind);
                strings.insert(key, value);
                p = end + header[end..].find(['"', '}']).expect("an end");
            }
            at = p + 1;
            continue;
        }
        at = p + header[p..].find('}').expect("an end") + 1;
        let entry = &header[p..at];
        let dtype = text(entry, entry.find("\"dtype\"").expect("a type") + 7).0;
        let (shape, to) = (numbers(entry, "shape"), numbers(entry, "data_offsets"));
        tensors.insert(name, Tensor { dtype, shape, data: file[start + to[0]..start + to[1]].to_vec() });
    }
    Ok((tensors, strings))
}

pub fn write(path: &str, tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    let (mut entries, mut body) = (Vec::new(), Vec::new());
    for (name, t) in tensors {
        let end = body.len() + t.data.len();
        entries.push(format!("\"{name}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{},{end}]}}", t.dtype, t.shape, body.len()));
        body.extend_from_slice(&t.data);
    }
    let header = format!("{{{}}}", entries.join(","));
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &body].concat())
}
