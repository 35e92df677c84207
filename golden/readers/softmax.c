// Answers one case of softmax: cc -O2 -o softmax softmax.c -lm, then ./softmax IN OUT.
#include "tensor_files.h"

int main(int count, char **word) {
    if (count != 3) tensors_stop("want", "./softmax IN OUT");
    TensorFile in;
    tensors_read(word[1], &in);
    Tensor *x = tensor_named(&in, "x"), *given = tensor_named(&in, "axis");
    if (!x || !given) tensors_stop("want x and axis in", word[1]);
    Tensor p = tensor_new("p", x->dtype, x->rank, x->shape);
    int axis = (int)tensor_get(given, 0);
    axis += axis < 0 ? x->rank : 0;
    long n = x->shape[axis], inner = 1;
    for (int i = axis + 1; i < x->rank; i++) inner *= x->shape[i];
    for (long row = 0; n && row < x->count / n; row++) {
        long at = row / inner * n * inner + row % inner;                        // of the row's first entry; the others stand inner apart
        double m = -INFINITY, l = 0;
        for (long j = 0; j < n; j++) m = fmax(m, tensor_get(x, at + j * inner));
        if (m == -INFINITY) continue;                                           // nothing but -inf: all zeros
        for (long j = 0; j < n; j++) l += exp(tensor_get(x, at + j * inner) - m);
        for (long j = 0; j < n; j++) tensor_set(&p, at + j * inner, exp(tensor_get(x, at + j * inner) - m) / l);
    }
    tensors_write(word[2], &p, 1);
    return 0;
}
