"""Kernel: one CUDA C++ function, called the same way on a device (CuPy arrays) and emulated on the CPU (NumPy arrays)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cpp_signature import parameters_of, read_parameters
from .packing import pack

if TYPE_CHECKING:
    from .emulator.launching import EmulatedKernel

KERNELS = Path(__file__).parent / "kernels"
BACKENDS = ("cuda", "emulated")
Schedule = str | int


class Kernel:
    """A `__global__` function of a source file.

    >>> softmax = Kernel("online_softmax.cu", "online_softmax<float, 128>")
    >>> softmax((rows,), (128,), (x, out, columns), backend="emulated", outputs=("out",))

    source      a path of a .cu file, or the name of one in gpu/kernels
    name        a function, or an instance of a template, such as "flash_forward<float, 64>"
    options     compiler options of both back ends: -D…, -U… and -I… alone
    parameters  the parameter list, where the source hides it behind macros: "const float* q, int n"
    max_shared_mem   dynamic shared memory it may ask for: over 48 KB is the opt-in that a device wants, up to 227 KB

    A call takes the arguments in the order of the C++ parameters, converted by `packing`: NumPy arrays (emulated) or CuPy arrays
    (cuda), Python or NumPy numbers, None for a null pointer. Arrays are passed by address and results are written in place.
    """

    def __init__(
        self, source: str | Path, name: str, *, options: Sequence[str] = (), parameters: str | None = None, max_shared_mem: int = 48 * 1024
    ) -> None:
        self.path, self.name, self.options, self.max_shared_mem = find_source(source), name, tuple(options), max_shared_mem
        self.source = self.path.read_text()
        if parameters is None:
            self.parameters = parameters_of(self.source, name, self.path.name)
        else:
            self.parameters = read_parameters(parameters, {}, name)
        self._emulated: dict[bool, EmulatedKernel] = {}
        self._function: Any = None

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0, backend: str = "cuda",
        schedule: Schedule = "in_order", check: bool = False, outputs: Sequence[str] = (), seconds: float = 60.0,
    ) -> None:  # fmt: skip
        """Launch it and wait. The last four arguments are the emulator's; "cuda" takes no notice of them.

        shared_mem  bytes of dynamic shared memory
        schedule    order in which threads and blocks take turns: "in_order", "reversed", or the seed of a random order
        check       also look for races, accesses out of bounds, reads of memory nobody wrote, …
        outputs     names of parameters whose arrays hold nothing yet: they are filled with 0xFF bytes (NaN) before the launch
        seconds     time limit of the launch

        Raises TypeError or ValueError for arguments that do not fit, KernelFault for what the kernel did wrong, RuntimeError where
        there is no device (cuda), no g++ or no CUDA headers (emulated).
        """
        if backend not in BACKENDS:
            raise ValueError(f"backend: got {backend!r}; want one of {', '.join(BACKENDS)}")
        packed = pack(self.name, self.parameters, args)
        if backend == "cuda":
            self._on_device()(tuple(grid), tuple(block), tuple(0 if a is None else a for a in packed), shared_mem=shared_mem)
            return
        self.emulated(check).launch(grid, block, packed, shared_mem=shared_mem, max_shared_mem=self.max_shared_mem, schedule=schedule,
                                    outputs=outputs, seconds=seconds)  # fmt: skip

    def emulated(self, check: bool = False) -> EmulatedKernel:
        """The kernel built for this machine's CPU; kept for the next call."""
        if check not in self._emulated:
            from .emulator.building import build
            from .emulator.launching import EmulatedKernel

            library = build(self.source, self.path.name, self.name, self.options, check=check, folders=self.folders)
            self._emulated[check] = EmulatedKernel(library, self.name, self.parameters, check=check)
        return self._emulated[check]

    @property
    def folders(self) -> tuple[Path, Path]:
        """Where its includes are looked for."""
        return (self.path.parent, KERNELS)

    def _on_device(self) -> Any:
        if self._function is None:
            cupy = device()
            options = ("-std=c++17", *self.options, *(f"-I{folder}" for folder in self.folders))
            module = cupy.RawModule(code=self.source, options=options, name_expressions=(self.name,))
            self._function = module.get_function(self.name)
            if self.max_shared_mem > 48 * 1024:
                self._function.max_dynamic_shared_size_bytes = self.max_shared_mem
        return self._function


def device() -> Any:
    """The cupy module, where it can reach a device. Raises RuntimeError saying what is missing, and how to do without."""
    instead = "to run the kernel on the CPU, give backend='emulated' and NumPy arrays"
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(f"backend 'cuda' needs CuPy, which cannot be imported ({error}); {instead}") from None
    if not cupy.cuda.is_available():
        raise RuntimeError(f"backend 'cuda' needs a CUDA device, and there is none here; {instead}")
    return cupy


def find_source(source: str | Path) -> Path:
    """The path of a .cu file: as given, or in gpu/kernels. Raises ValueError where there is none."""
    for path in (Path(source), KERNELS / source, KERNELS / f"{source}.cu"):
        if path.is_file():
            return path.resolve()
    own = ", ".join(sorted(path.name for path in KERNELS.glob("*.cu"))) or "none yet"
    raise ValueError(f"source: no file {source}; want a .cu file, or one of ours: {own}")
