"""Arguments are converted to the C++ types or refused by name; parameter lists are read from real-looking sources."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.gpu.cpp_signature import kernels_of, parameters_of, read_parameters, split_instance
from oracles.gpu.packing import Parameter, pack

F32 = np.ones(4, np.float32)

# parameter, what is given, the error and a part of its message
REFUSED: list[tuple[Parameter, Any, type[Exception], str]] = [
    (Parameter("scale", "float"), F32, TypeError, "argument 0 'scale' is a float: got a float32 array"),
    (Parameter("scale", "float"), np.ones((), np.int64), TypeError, "argument 0 'scale' is a float: got an int64 array"),
    (Parameter("scale", "float"), 1e300, ValueError, "got 1e+300; want at most"),
    (Parameter("scale", "float"), "1", TypeError, "got a str"),
    (Parameter("scale", "float"), None, TypeError, "got a NoneType"),
    (Parameter("n", "int"), 1.0, TypeError, "argument 0 'n' is an int: got the float 1.0; want a whole number"),
    (Parameter("n", "int"), np.float32(3), TypeError, "got the float32 3.0"),
    (Parameter("n", "int"), 2**31, ValueError, "got 2147483648; want -2147483648 to 2147483647"),
    (Parameter("n", "unsigned"), -1, ValueError, "got -1; want 0 to 4294967295"),
    (Parameter("on", "bool"), 1, TypeError, "got the int 1; want True or False"),
    (Parameter("b", "__nv_bfloat16"), 1.0, TypeError, "cannot be passed by value"),
    (Parameter("q", "float", True, True), np.ones(4), TypeError, "argument 0 'q' is a const float*: got a float64 array; want float32"),
    (Parameter("q", "__half", True), F32, TypeError, "is a __half*: got a float32 array; want float16"),
    (Parameter("q", "__nv_bfloat16", True), np.ones(4, np.float16), TypeError, "want bfloat16 or uint16"),
    (Parameter("q", "float", True), F32[::2], ValueError, "want a C-contiguous one"),
    (Parameter("q", "float", True), [1.0], TypeError, "got a list; want an array, or None"),
    (Parameter("q", "float", True), np.float32(1), TypeError, "want an array, or None"),
    (Parameter("q", "float4", True), np.ones(6, np.float32), ValueError, "got 6 numbers; want a multiple of 4"),
]


@pytest.mark.parametrize(("parameter", "given", "error", "says"), REFUSED, ids=lambda x: str(x)[:40])
def test_what_does_not_fit_is_refused_by_name(parameter: Parameter, given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        pack("k", [parameter], [given])
    assert says in str(caught.value)


# parameter, what is given, the NumPy scalar that is passed
CONVERTED = [
    (Parameter("x", "float"), 0.1, np.float32(0.1)),
    (Parameter("x", "float"), 3, np.float32(3)),
    (Parameter("x", "float"), np.float64(0.1), np.float32(0.1)),
    (Parameter("x", "float"), float("inf"), np.float32("inf")),
    (Parameter("x", "double"), 0.1, np.float64(0.1)),
    (Parameter("x", "__half"), 0.1, np.float16(0.1)),
    (Parameter("x", "int"), True, np.int32(1)),
    (Parameter("x", "int"), np.int64(-5), np.int32(-5)),
    (Parameter("x", "long long"), 2**40, np.int64(2**40)),
    (Parameter("x", "unsigned long long"), 2**64 - 1, np.uint64(2**64 - 1)),
    (Parameter("x", "bool"), np.bool_(True), np.bool_(True)),
]


@pytest.mark.parametrize(("parameter", "given", "passed"), CONVERTED, ids=lambda x: str(x)[:40])
def test_a_number_is_passed_in_the_type_of_the_parameter(parameter: Parameter, given: Any, passed: Any) -> None:
    (found,) = pack("k", [parameter], [given])
    assert found.dtype == passed.dtype
    assert found == passed


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.uint16], ids=str)
def test_bfloat16_comes_as_itself_or_as_its_bits(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    assert pack("k", [Parameter("q", "__nv_bfloat16", True)], [array])[0] is array


def test_none_is_a_null_pointer() -> None:
    assert pack("k", [Parameter("bias", "float", True)], [None]) == [None]


def test_a_wrong_number_of_arguments_lists_the_parameters() -> None:
    with pytest.raises(TypeError, match=r"k: got 1 arguments; want 2: const float\* x, int n"):
        pack("k", [Parameter("x", "float", True, True), Parameter("n", "int")], [F32])


SOURCE = """
// __global__ void in_a_comment(int n) {}
#define IN const float* __restrict__
#define LENGTH \\
  int
typedef unsigned int word;
template <typename T, int D, class Out = float>
__global__ void __launch_bounds__(128, (D > 64 ? 1 : 2)) templated(
    const T* __restrict__ q, T *o, Out* lse, int Lq /* rows */, float scale) {}
extern "C" __global__ void plain(IN x, LENGTH n, word count, size_t bytes, const bool causal, const unsigned char mask[], void* anything) {}
static __global__ __launch_bounds__(32) void static_one(__nv_bfloat162* pairs, const __half *const h, unsigned long long big = 3) {}
__global__ void nothing() {}
"""

SIGNATURES = {
    "templated<__half, 64>": ["const __half* q", "__half* o", "float* lse", "int Lq", "float scale"],
    "templated<float, 64, __nv_bfloat16>": ["const float* q", "float* o", "__nv_bfloat16* lse", "int Lq", "float scale"],
    "plain": ["const float* x", "int n", "unsigned count", "unsigned long long bytes", "bool causal", "const unsigned char* mask",
              "void* anything"],
    "static_one": ["__nv_bfloat162* pairs", "const __half* h", "unsigned long long big"],
    "nothing": [],
}  # fmt: skip


@pytest.mark.parametrize("kernel", SIGNATURES)
def test_the_parameters_of_a_kernel_are_read_from_its_source(kernel: str) -> None:
    assert [f"{p} {p.name}" for p in parameters_of(SOURCE, kernel, "a.cu")] == SIGNATURES[kernel]


def test_every_kernel_of_a_source_is_found_and_none_in_a_comment() -> None:
    assert kernels_of(SOURCE) == ["templated", "plain", "static_one", "nothing"]


@pytest.mark.parametrize(("kernel", "says"), [("missing", "it has templated, plain"), ("templated<>", "want a type for T")])
def test_a_kernel_that_cannot_be_read_is_refused(kernel: str, says: str) -> None:
    with pytest.raises(ValueError, match="name: ") as caught:
        parameters_of(SOURCE, kernel, "a.cu")
    assert says in str(caught.value)


@pytest.mark.parametrize("parameter", ["float& x", "float** x", "Tensor x", "Tensor* x", "float4 x"])
def test_a_type_that_cannot_be_passed_is_refused(parameter: str) -> None:
    with pytest.raises(ValueError, match="k: parameter"):
        read_parameters(parameter, {}, "k")


def test_an_instance_is_split_into_name_and_arguments() -> None:
    assert split_instance("a::b<pair<int, 2>, 64>") == ("b", ["pair<int, 2>", "64"])
