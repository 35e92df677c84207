/* Attention behind files, in C: attention_program in.safetensors out.safetensors
 * float32 or float64, causal bottom_right or none, scale, grouped heads; exit status 77 for anything else.
 * The parser knows the canonical headers that the checker writes: compact JSON, "dtype", "shape", "data_offsets" in that order. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_SUPPORTED = 77, CORRUPT = 2 };

typedef struct { char dtype[8]; long shape[4]; int ndim; const char *data; } Tensor;

static void leave(int status, const char *why) { fprintf(stderr, "%s\n", why); exit(status); }

static int find(const char *header, const char *body, const char *name, Tensor *t) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"", name);
    const char *p = strstr(header, key);
    if (!p) return 0;
    p += strlen(key);
    size_t n = strcspn(p, "\"");
    if (n >= sizeof t->dtype) leave(CORRUPT, "dtype too long");
    memcpy(t->dtype, p, n); t->dtype[n] = 0;
    p = strchr(strstr(p, "\"shape\":"), '[') + 1;
    for (t->ndim = 0; *p != ']'; p += *p == ',') {
        if (t->ndim == 4) leave(NOT_SUPPORTED, "more than 4 axes");
        t->shape[t->ndim++] = strtol(p, (char **)&p, 10);
    }
    t->data = body + strtol(strchr(strstr(p, "\"data_offsets\":"), '[') + 1, NULL, 10);
    return 1;
}

static double at(const Tensor *t, long i) { return t->dtype[1] == '3' ? ((const float *)t->data)[i] : ((const double *)t->data)[i]; }

int main(int argc, char **argv) {
    if (argc != 3) leave(CORRUPT, "usage: attention_program IN OUT");
    FILE *file = fopen(argv[1], "rb");
    uint64_t length;
    if (!file || fread(&length, 8, 1, file) != 1) leave(CORRUPT, "cannot read the input");
    char *header = calloc(length + 1, 1);
    if (fread(header, 1, length, file) != length) leave(CORRUPT, "header cut short");
    long start = ftell(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file) - start;
    char *body = malloc(size + 8);
    fseek(file, start, SEEK_SET);
    if ((long)fread(body, 1, size, file) != size) leave(CORRUPT, "data cut short");

    Tensor q, k, v, t;
    if (!find(header, body, "q", &q) || !find(header, body, "k", &k) || !find(header, body, "v", &v)) leave(CORRUPT, "no q, k, v");
    if (strcmp(q.dtype, "F32") && strcmp(q.dtype, "F64")) leave(NOT_SUPPORTED, "only float32 and float64");
    if (strstr(header, "\"causal\":\"top_left\"")) leave(NOT_SUPPORTED, "only bottom_right");
    int causal = strstr(header, "\"causal\":\"bottom_right\"") != NULL, narrow = q.dtype[1] == '3';
    long B = q.shape[0], Hq = q.shape[1], Lq = q.shape[2], D = q.shape[3], Hkv = k.shape[1], Lk = k.shape[2], Dv = v.shape[3];
    double scale = find(header, body, "scale", &t) ? *(const double *)t.data : 1 / sqrt((double)D);

    size_t rows = B * Hq * Lq, width = narrow ? 4 : 8;
    double *out = calloc(rows * Dv + 1, 8), *lse = calloc(rows + 1, 8), *s = calloc(Lk + 1, 8);
    for (long b = 0; b < B; b++) for (long h = 0; h < Hq; h++) for (long i = 0; i < Lq; i++) {
        long row = (b * Hq + h) * Lq + i, head = b * Hkv + h / (Hq / Hkv), seen = causal ? i + Lk - Lq + 1 : Lk;
        double m = -INFINITY, l = 0;
        for (long j = 0; j < seen; j++) {
            double dot = 0;
            for (long d = 0; d < D; d++) dot += at(&q, row * D + d) * at(&k, (head * Lk + j) * D + d);
            s[j] = dot * scale;
            m = s[j] > m ? s[j] : m;
        }
        for (long j = 0; j < seen; j++) {
            double p = exp(s[j] - m);
            l += p;
            for (long d = 0; d < Dv; d++) out[row * Dv + d] += p * at(&v, (head * Lk + j) * Dv + d);
        }
        for (long d = 0; d < Dv; d++) out[row * Dv + d] /= l > 0 ? l : 1;
        lse[row] = l == 0 ? -INFINITY : m + log(l);
    }

    char text[512];
    int n = snprintf(text, sizeof text, "{\"out\":{\"dtype\":\"%s\",\"shape\":[%ld,%ld,%ld,%ld],\"data_offsets\":[0,%zu]},"
                     "\"lse\":{\"dtype\":\"%s\",\"shape\":[%ld,%ld,%ld],\"data_offsets\":[%zu,%zu]}}",
                     q.dtype, B, Hq, Lq, Dv, rows * Dv * width, q.dtype, B, Hq, Lq, rows * Dv * width, rows * (Dv + 1) * width);
    length = n;
    file = fopen(argv[2], "wb");
    fwrite(&length, 8, 1, file);
    fwrite(text, 1, n, file);
    for (size_t i = 0; i < rows * (Dv + 1); i++) {
        double x = i < rows * Dv ? out[i] : lse[i - rows * Dv];
        float y = (float)x;
        fwrite(narrow ? (void *)&y : (void *)&x, width, 1, file);
    }
    return fclose(file) ? CORRUPT : 0;
}
