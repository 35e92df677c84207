// Reads and writes safetensors files: C99, no dependency but the C library (link with -lm), for little-endian machines.
//     TensorFile in;  tensors_read("in.safetensors", &in);  Tensor *x = tensor_named(&in, "x");  tensor_get(x, 0);
//     Tensor p = tensor_new("p", x->dtype, x->rank, x->shape);  tensor_set(&p, 0, 0.5);  tensors_write("out.safetensors", &p, 1);
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[64], dtype[16]; int rank; long shape[8], count; unsigned char *data; } Tensor;
typedef struct { int tensors, strings; Tensor tensor[64]; char name[64][64], value[64][128]; } TensorFile;   // strings: the metadata

static void tensors_stop(const char *what, const char *about) { fprintf(stderr, "%s: %s\n", what, about); exit(1); }

static int tensor_width(const char *dtype) {                            // bytes of an element
    const char *known[] = {"F64", "I64", "U64", "F32", "I32", "U32", "F16", "BF16", "I16", "U16", "I8", "U8", "BOOL"};
    const int width[] = {8, 8, 8, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1};
    for (int i = 0; i < 13; i++) if (!strcmp(dtype, known[i])) return width[i];
    tensors_stop("unknown type", dtype);
    return 0;
}

static const char *tensors_gap(const char *p) { while (*p && strchr(" ,:\t\r\n", *p)) p++; return p; }

static const char *tensors_text(const char *p, char *to, int room) {    // p stands on a quotation mark
    int n = 0;
    for (p++; *p && *p != '"'; p++) {
        if (*p == '\\' && p[1]) p++;
        if (n == room - 1) tensors_stop("too long", to);
        to[n++] = *p; to[n] = 0;
    }
    return tensors_gap(*p ? p + 1 : p);
}

static void tensors_read(const char *path, TensorFile *f) {
    FILE *file = fopen(path, "rb");
    uint64_t length;
    if (!file || fread(&length, 8, 1, file) != 1) tensors_stop("cannot read", path);
    char *header = calloc(length + 1, 1), key[64];
    if (!header || fread(header, 1, length, file) != length) tensors_stop("cut short", path);
    memset(f, 0, sizeof *f);
    for (const char *p = tensors_gap(header + 1); *p == '"'; p = tensors_gap(p + 1)) {
        if (f->tensors == 64) tensors_stop("more than 64 tensors", path);
        Tensor *t = &f->tensor[f->tensors];
        long offset[2] = {0, 0};
        p = tensors_text(p, t->name, 64);
        int metadata = !strcmp(t->name, "__metadata__");
        for (p = tensors_gap(p + 1); *p == '"'; p = tensors_gap(p)) {
            p = tensors_text(p, key, 64);
            if (metadata) {
                if (f->strings == 64) tensors_stop("more than 64 strings", path);
                strcpy(f->name[f->strings], key);
                p = tensors_text(p, f->value[f->strings++], 128);
            } else if (*p == '"') p = tensors_text(p, t->dtype, 16);
            else {
                int n = 0, shape = !strcmp(key, "shape");
                long *to = shape ? t->shape : offset;
                for (p = tensors_gap(p + 1); *p && *p != ']'; p = tensors_gap(p)) {
                    if (n == (shape ? 8 : 2)) tensors_stop("too many numbers", t->name);
                    to[n++] = strtol(p, (char **)&p, 10);
                }
                if (*p) p++;
                if (shape) t->rank = n;
            }
        }
        if (metadata) continue;
        t->count = 1;
        for (int i = 0; i < t->rank; i++) t->count *= t->shape[i];
        size_t bytes = (size_t)(t->count * tensor_width(t->dtype));
        t->data = malloc(bytes + 1);
        if (fseek(file, (long)(8 + length) + offset[0], SEEK_SET) || fread(t->data, 1, bytes, file) != bytes) tensors_stop("cut short", path);
        f->tensors++;
    }
    free(header); fclose(file);
}

static Tensor *tensor_named(TensorFile *f, const char *name) {          // NULL where there is none
    for (int i = 0; i < f->tensors; i++) if (!strcmp(f->tensor[i].name, name)) return &f->tensor[i];
    return NULL;
}

static const char *string_named(const TensorFile *f, const char *name) {
    for (int i = 0; i < f->strings; i++) if (!strcmp(f->name[i], name)) return f->value[i];
    return NULL;
}

static Tensor tensor_new(const char *name, const char *dtype, int rank, const long *shape) {
    Tensor t = {.rank = rank, .count = 1};
    snprintf(t.name, 64, "%s", name); snprintf(t.dtype, 16, "%s", dtype);
    for (int i = 0; i < rank; i++) { t.shape[i] = shape[i]; t.count *= shape[i]; }
    t.data = calloc((size_t)t.count + 1, (size_t)tensor_width(dtype));
    return t;
}

static double tensor_half(unsigned code, int fraction, int bias) {      // binary16: 10 bits of fraction, bias 15; bfloat16: 7 and 127
    int exponent = (code & 0x7fff) >> fraction, all = 2 * bias + 1, low = code & ((1 << fraction) - 1);
    double size = exponent == all ? (low ? NAN : INFINITY)
                                  : ldexp(low + (exponent ? 1 << fraction : 0), (exponent ? exponent : 1) - bias - fraction);
    return code & 0x8000 ? -size : size;
}

static unsigned tensor_code(double x, int fraction, int bias) {         // the inverse, rounded to nearest, ties to even
    unsigned sign = signbit(x) ? 0x8000 : 0, infinite = (unsigned)(2 * bias + 1) << fraction;
    if (isnan(x)) return infinite + 1;
    if (isinf(x)) return sign | infinite;
    int exponent = x == 0 || ilogb(x) < 1 - bias ? 1 - bias : ilogb(x);
    double code = nearbyint(ldexp(fabs(x), fraction - exponent)) + ldexp(exponent + bias - 1, fraction);
    return sign | (code < infinite ? (unsigned)code : infinite);
}

static double tensor_get(const Tensor *t, long i) {
    const void *d = t->data;
    if (!strcmp(t->dtype, "F64")) return ((const double *)d)[i];
    if (!strcmp(t->dtype, "F32")) return ((const float *)d)[i];
    if (!strcmp(t->dtype, "F16")) return tensor_half(((const uint16_t *)d)[i], 10, 15);
    if (!strcmp(t->dtype, "BF16")) return tensor_half(((const uint16_t *)d)[i], 7, 127);
    if (!strcmp(t->dtype, "I64")) return (double)((const int64_t *)d)[i];
    if (!strcmp(t->dtype, "I32")) return ((const int32_t *)d)[i];
    if (!strcmp(t->dtype, "BOOL") || !strcmp(t->dtype, "U8")) return ((const uint8_t *)d)[i];
    tensors_stop("cannot get", t->dtype);
    return 0;
}

static void tensor_set(Tensor *t, long i, double x) {
    void *d = t->data;
    if (!strcmp(t->dtype, "F64")) ((double *)d)[i] = x;
    else if (!strcmp(t->dtype, "F32")) ((float *)d)[i] = (float)x;
    else if (!strcmp(t->dtype, "F16")) ((uint16_t *)d)[i] = (uint16_t)tensor_code(x, 10, 15);
    else if (!strcmp(t->dtype, "BF16")) ((uint16_t *)d)[i] = (uint16_t)tensor_code(x, 7, 127);
    else if (!strcmp(t->dtype, "I64")) ((int64_t *)d)[i] = (int64_t)x;
    else if (!strcmp(t->dtype, "I32")) ((int32_t *)d)[i] = (int32_t)x;
    else if (!strcmp(t->dtype, "BOOL") || !strcmp(t->dtype, "U8")) ((uint8_t *)d)[i] = x != 0 ? (uint8_t)x : 0;
    else tensors_stop("cannot set", t->dtype);
}

static void tensors_write(const char *path, const Tensor *tensor, int n) {
    char *header = calloc((size_t)n + 1, 512), *p = header;
    long at = 0;
    for (int i = 0; i < n; i++) {
        const Tensor *t = &tensor[i];
        p += sprintf(p, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? ',' : '{', t->name, t->dtype);
        for (int j = 0; j < t->rank; j++) p += sprintf(p, j ? ",%ld" : "%ld", t->shape[j]);
        p += sprintf(p, "],\"data_offsets\":[%ld,%ld]}", at, at + t->count * tensor_width(t->dtype));
        at += t->count * tensor_width(t->dtype);
    }
    strcpy(p, n ? "}" : "{}");
    uint64_t length = strlen(header);
    FILE *file = fopen(path, "wb");
    if (!file) tensors_stop("cannot write", path);
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, length, file);
    for (int i = 0; i < n; i++) fwrite(tensor[i].data, 1, (size_t)(tensor[i].count * tensor_width(tensor[i].dtype)), file);
    if (fclose(file)) tensors_stop("cannot write", path);
    free(header);
}
