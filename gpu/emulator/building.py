"""Building: an unmodified CUDA C++ source into a shared library that runs on the CPU, kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..cuda_wheels import wheel_folders

HERE = Path(__file__).parent
INSTALL = "pip install 'oracles[emulate]'"
RUNTIME = ("fibers.cpp", "scheduler.cpp", "watch.cpp")
CHECKER = ("checker.cpp", "instrumentation.cpp")
# Contraction off: a device contracts in its own way. no-gnu-unique: static variables of two loaded kernels stay apart.
FLAGS = (
    "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-threadsafe-statics", "-fno-gnu-unique",
    "-w",
)  # fmt: skip
MODES = {False: ("-O2", "-g1"), True: ("-O1", "-g", "-DEMU_CHECKS")}
INSTRUMENTED = ("-fsanitize=thread,bounds,shift-exponent",)
STORAGE = re.compile(
    r"extern\s+__shared__\s+(?P<before>(?:__attribute__\(\([^;]*?\)\)\s*|alignas\([^)]*\)\s*)*)(?P<type>[\w:<> ]+?)\s*\b(?P<name>\w+)\s*"
    r"\[\s*\]\s*(?:__attribute__\(\([^;]*?\)\)\s*)?;"
)
DEVICE_WORDS = re.compile(r"\b__shared__\b")


class CannotEmulate(RuntimeError):
    """What the emulator needs is not installed."""


class DoesNotCompile(ValueError):
    """g++ refused the source; the message holds what it said."""


@dataclass(frozen=True)
class Library:
    """A built kernel: its file, and (name, offset, bytes) of each static shared variable in it."""

    path: Path
    static_shared: tuple[tuple[str, int, int], ...]


def build(source: str, title: str, kernel: str, options: Sequence[str], *, check: bool, folders: Sequence[Path] = (),
          ucontext: bool = False) -> Library:  # fmt: skip
    """Compile one kernel of a source text; title is the file name for messages, folders hold what it includes.

    Raises CannotEmulate without g++ or the CUDA headers, DoesNotCompile where g++ refuses the source.
    """
    wrong = [option for option in options if not option.startswith(("-D", "-I", "-U", "-std="))]
    if wrong:
        raise ValueError(f"options: got {wrong[0]!r}; want -D…, -U…, -I… or -std=…, which both back ends understand")
    portable = [*options, *(f"-I{folder}" for folder in folders)]
    expanded = _expand(source, title, portable)
    text = f"{_with_storage(expanded)}\n# 1 \"entry\"\n{_entry(kernel)}\n"
    base = [*FLAGS, *MODES[check], *(("-mfma",) if platform.machine() == "x86_64" else ()), *(("-DEMU_UCONTEXT",) if ucontext else ())]
    key = _hash(text, *base, _runtime_text(), _version())
    place = cache_folder() / f"{key}.so"
    listing = place.with_suffix(".json")
    if not (place.exists() and listing.exists()):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            work = Path(folder)
            (work / "kernel.ii").write_text(text)
            instrument = INSTRUMENTED if check else ()
            _run([*base, *instrument, "-fpreprocessed", "-c", str(work / "kernel.ii"), "-o", str(work / "kernel.o")], title)
            objects = [str(_runtime_object(name, base)) for name in RUNTIME + (CHECKER if check else ())]
            _run(["-shared", "-Wl,-Bsymbolic", str(work / "kernel.o"), *objects, "-o", str(work / "kernel.so")], title)
            (work / "listing").write_text(json.dumps(_static_shared(work / "kernel.so")))
            (work / "listing").replace(listing)
            (work / "kernel.so").replace(place)
    return Library(place, tuple((str(n), int(o), int(b)) for n, o, b in json.loads(listing.read_text())))


def cache_folder() -> Path:
    """Where built kernels are kept: oracles/emulator in the user's cache folder (XDG)."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "oracles" / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def compiler() -> str:
    """Path of g++. Raises CannotEmulate where there is none."""
    found = shutil.which("g++")
    if not found:
        raise CannotEmulate("the emulator needs g++ with C++17 (Debian, Ubuntu: apt install g++), and there is none on the PATH")
    return found


@cache
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout


@cache
def cuda_headers() -> Path:
    """The folder with cuda_fp16.h from NVIDIA's wheel. Raises CannotEmulate where it is not installed."""
    for folder in wheel_folders():
        if (folder / "include" / "cuda_fp16.h").exists():
            return folder / "include"
    raise CannotEmulate(f"the emulator needs the CUDA headers of the wheel nvidia-cuda-runtime, which is not installed; want {INSTALL}")


def _expand(source: str, title: str, options: Sequence[str]) -> str:
    """The source with includes and macros expanded; line markers keep its own lines."""
    own = [f"-I{HERE}", f"-I{HERE / 'include'}", f"-I{cuda_headers()}", f"-include{HERE / 'cuda_emulator.h'}"]
    command = [compiler(), "-std=c++17", "-E", "-x", "c++", "-DORACLES_EMULATED=1", *options, *own, "-"]
    done = subprocess.run(command, input=f'#line 1 "{title}"\n{source}', capture_output=True, text=True)
    if done.returncode:
        raise DoesNotCompile(f"{title}: {done.stderr.strip()}")
    return done.stdout.replace('"<stdin>"', f'"{title}"')


def _with_storage(text: str) -> str:
    """Dynamic shared memory becomes a pointer, static shared variables static: sound, since one block runs at a time."""
    text = STORAGE.sub(lambda m: f"{m['type']}* {m['name']} = reinterpret_cast<{m['type']}*>(::emu::dynamic_shared());", text)
    return DEVICE_WORDS.sub("static __attribute__((used))", text)                # used: or what nobody writes is folded into 0


def _entry(kernel: str) -> str:
    """EMU_ENTRY of entry.h, written out, since the text is preprocessed already."""
    return (
        'extern "C" __attribute__((visibility("default"))) int emulator_launch(const emu::Configuration* c, void** a) '
        f"{{ return emu::launch_kernel(&{kernel}, c, a); }}\n"
        'extern "C" __attribute__((visibility("default"))) const char* emulator_parameters() '
        f"{{ static std::string codes = emu::parameter_codes(&{kernel}); return codes.c_str(); }}"
    )


def _runtime_object(name: str, base: Sequence[str]) -> Path:
    place = cache_folder() / f"{Path(name).stem}-{_hash(*base, name, _runtime_text(), _version())}.o"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            target = Path(folder) / "object.o"
            _run([*base, f"-I{HERE}", f"-I{cuda_headers()}", "-c", str(HERE / name), "-o", str(target)], name)
            target.replace(place)
    return place


@cache
def _runtime_text() -> str:
    return "".join(path.read_text() for path in sorted(HERE.rglob("*")) if path.suffix in (".h", ".cpp"))


def _run(arguments: Sequence[str], title: str) -> None:
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise DoesNotCompile(f"{title}: {_readable(done.stderr)}")


def _readable(said: str) -> str:
    """The errors and where they are; not the pages of template context. An error in the entry is one in the name of the kernel."""
    lines = [re.sub(r"^entry:\d+:\d+: error: ", "error in the name of the kernel: ", line) for line in said.splitlines()]
    errors = list(dict.fromkeys(line for line in lines if "error" in line or "undefined" in line))
    return "\n".join(errors[:8]) or said[:2000]


def _static_shared(library: Path) -> list[tuple[str, int, int]]:
    """Static shared variables are the writable function-local statics of the kernel."""
    table = subprocess.run(["objdump", "-t", str(library)], capture_output=True, text=True, check=True).stdout
    found = []
    for line in table.splitlines():
        m = re.match(r"([0-9a-f]+) .{7} \.(?:bss|data)\s+([0-9a-f]+)\s+(?:\.hidden )?(_ZZ\S+)$", line)
        if m and not re.search(r"3emu|NSt|emulator_", m[3]):
            found.append((_variable(m[3]), int(m[1], 16), int(m[2], 16)))
    return found


def _variable(mangled: str) -> str:
    """The name of a local variable: the last <length><name> of its mangled name."""
    for m in re.finditer(r"E(\d+)", mangled):
        name = mangled[m.end() : m.end() + int(m[1])]
        if re.fullmatch(r"[A-Za-z_]\w*", name) and re.fullmatch(r"(_\d*_?|_\d+)?", mangled[m.end() + int(m[1]) :]):
            return name
    return mangled


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
