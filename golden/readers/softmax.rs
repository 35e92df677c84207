// Answers one case of softmax: rustc --edition 2021 -O softmax.rs, then ./softmax IN OUT.
#[allow(dead_code)]
mod tensor_files;
use tensor_files::{read, write, Tensor};

fn main() -> std::io::Result<()> {
    let word: Vec<String> = std::env::args().collect();
    let (tensors, _) = read(&word[1])?;
    let x = &tensors["x"];
    let mut p = Tensor::new(&x.dtype, &x.shape);
    let axis = (tensors["axis"].get(0) as isize).rem_euclid(x.shape.len() as isize) as usize;
    let (n, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    for row in 0..x.count().checked_div(n).unwrap_or(0) {
        let at = row / inner * n * inner + row % inner;                 // of the row's first entry; the others stand inner apart
        let entries: Vec<f64> = (0..n).map(|j| x.get(at + j * inner)).collect();
        let m = entries.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if m == f64::NEG_INFINITY { continue; }                         // nothing but -inf: all zeros
        let l: f64 = entries.iter().map(|entry| (entry - m).exp()).sum();
        for (j, entry) in entries.iter().enumerate() { p.set(at + j * inner, (entry - m).exp() / l); }
    }
    write(&word[2], &[("p", &p)])
}
