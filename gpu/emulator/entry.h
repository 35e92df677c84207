// How Python reaches a kernel: building.py adds one C function that launches it and one that tells its parameter types.
#pragma once
#include "runtime.h"

namespace emu {

template <class T>
std::string type_code() {
  if (std::is_same<T, __half>::value) return "f2";
  if (std::is_same<T, __nv_bfloat16>::value) return "b2";
  if constexpr (std::is_void<T>::value) return "v";
  else {
    const char* kind = std::is_floating_point<T>::value ? "f" : std::is_signed<T>::value ? "i" : std::is_unsigned<T>::value ? "u" : "x";
    return kind + std::to_string(sizeof(T));
  }
}

template <class T>
std::string parameter_code() {
  using Target = typename std::remove_pointer<T>::type;
  using Bare = typename std::remove_cv<Target>::type;
  if (!std::is_pointer<T>::value) return type_code<Bare>();
  return (std::is_const<Target>::value ? "c" : "p") + type_code<Bare>();
}

template <class... Arguments>
std::string parameter_codes(void (*)(Arguments...)) {
  std::string codes;
  ((codes += parameter_code<typename std::remove_cv<Arguments>::type>() + ","), ...);
  return codes;
}

template <class... Arguments>
struct Call {
  void (*kernel)(Arguments...);
  void** arguments;
};

// Reading the packed arguments is no access of the kernel: not instrumented.
template <class... Arguments, size_t... Index>
__attribute__((no_sanitize("thread"))) void apply(Call<Arguments...>* call, std::index_sequence<Index...>) {
  call->kernel(*static_cast<typename std::remove_cv<Arguments>::type*>(call->arguments[Index])...);
}

template <class... Arguments>
int launch_kernel(void (*kernel)(Arguments...), const Configuration* configuration, void** arguments) {
  Call<Arguments...> call{kernel, arguments};
  const auto body = [](void* given) { apply(static_cast<Call<Arguments...>*>(given), std::index_sequence_for<Arguments...>{}); };
  return run(configuration, body, &call);
}

}  // namespace emu
