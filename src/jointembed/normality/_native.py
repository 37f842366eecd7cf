"""The inner loops of `EppsPulley` and of drawing directions in one small C++ file, built once (a second) and cached.

Fused, each loop reads an element once; a chain of PyTorch operators passes over memory at every step. The library links
against nothing but the OpenMP that torch has loaded already, so both share one pool of threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# K, the number of positive grid points, is a macro: the loops over it unroll.
# cos and sin of 2 pi u, |u| <= 1/2, are least-squares polynomials in u^2, errors below 2e-9, less than float32's own.
# Sums: cos(k+1)a = 2 cos a cos ka - cos(k-1)a, likewise sin (Chebyshev). Gradient: the same, read backwards (Clenshaw).
SOURCE = r"""
#include <cstring>
typedef float lanes __attribute__((vector_size(32)));
enum { L = 8 };

static inline void cos_sin(lanes x, float turns, lanes *c, lanes *s) {
    lanes y = x * turns, nearest;
    for (int l = 0; l < L; l++) nearest[l] = __builtin_rintf(y[l]);
    lanes u = y - nearest, v = u * u;
    *s = u * (6.283185272447939f + v * (-41.34169703819951f + v * (81.60502363802229f + v * (-76.70153767009414f
         + v * (42.01607576088231f + v * (-14.868322748258066f + v * 3.1993388398565457f))))));
    *c = 1.f + v * (-19.73920874345382f + v * (64.9393890758907f + v * (-85.45665831475124f
         + v * (60.242131337890235f + v * (-26.40466818479793f + v * (7.8001314302281965f
         + v * -1.4531123074960504f))))));
}

static inline lanes load(const float *x, long have) {  // zeros beyond the end
    lanes v = {0};
    if (have >= L) memcpy(&v, x, sizeof v);
    else memcpy(&v, x, have * sizeof(float));
    return v;
}

static inline void store(float *x, lanes v, long room) {
    if (room >= L) memcpy(x, &v, sizeof v);
    else memcpy(x, &v, room * sizeof(float));
}

extern "C" void sums(const float *x, long rows, long n, float turns, float *out, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long m = 0; m < rows; m++) {
        lanes C[K] = {0}, S[K] = {0};
        for (long i = 0; i < n; i += L) {
            lanes c, s;
            cos_sin(load(x + m * n + i, n - i), turns, &c, &s);
            lanes c0 = {1, 1, 1, 1, 1, 1, 1, 1}, s0 = {0}, c1 = c, s1 = s, twice = c + c;
            #pragma GCC unroll 64
            for (int k = 0; k < K; k++) {
                C[k] += c1; S[k] += s1;
                lanes c2 = twice * c1 - c0, s2 = twice * s1 - s0;
                c0 = c1; c1 = c2; s0 = s1; s1 = s2;
            }
        }
        float padding = (L - n % L) % L;  // lanes beyond n hold x = 0, of cosine 1
        for (int k = 0; k < K; k++) {
            float c = -padding, s = 0;
            for (int l = 0; l < L; l++) { c += C[k][l]; s += S[k][l]; }
            out[2 * (m * K + k)] = c; out[2 * (m * K + k) + 1] = s;
        }
    }
}

extern "C" void gradient(const float *x, long rows, long n, float turns, const float *d, float *out, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long m = 0; m < rows; m++) {
        const float *coefficient = d + 2 * m * K;
        for (long i = 0; i < n; i += L) {
            lanes c, s;
            cos_sin(load(x + m * n + i, n - i), turns, &c, &s);
            lanes p1 = {0}, p2 = {0}, q1 = {0}, q2 = {0}, twice = c + c;
            #pragma GCC unroll 64
            for (int k = K - 1; k >= 0; k--) {
                lanes p = twice * p1 + (coefficient[2 * k] - p2), q = twice * q1 + (coefficient[2 * k + 1] - q2);
                p2 = p1; p1 = p; q2 = q1; q1 = q;
            }
            lanes g = p1 * c - p2 - q1 * s;
            store(out + m * n + i, g, n - i);
        }
    }
}

// Box-Muller on 16-bit halves of splitmix64 words; same words as directions.py, normals equal to rounding.
extern "C" void normals(unsigned long long key, unsigned long long *words, long count, const float *radius, long pairs,
                        float *out, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < count; i++) {
        unsigned long long w = key + i * 0x9E3779B97F4A7C15ull;
        w = (w ^ w >> 30) * 0xBF58476D1CE4E5B9ull;
        w = (w ^ w >> 27) * 0x94D049BB133111EBull;
        words[i] = w ^ w >> 31;
    }
    const short *r = (const short *)words, *angle = r + 4 * count - pairs;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < pairs; i += L) {
        lanes turn = {0}, length = {0}, c, s;
        for (int l = 0; l < L && i + l < pairs; l++) {
            turn[l] = angle[i + l];
            length[l] = radius[r[i + l] + 32768];
        }
        cos_sin(turn, 1.f / 65536, &c, &s);
        store(out + i, length * c, pairs - i);
        store(out + pairs + i, length * s, pairs - i);
    }
}
"""

VECTOR_FLAGS = {"AVX2": ["-mavx2", "-mfma"], "AVX512": ["-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512dq"]}


def _cache_directory() -> Path:
    """The user's own cache, or a private temporary directory: never a place where others could leave a library."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jointembed"
    try:
        path.mkdir(parents=True, exist_ok=True)
        status = path.stat()
        if os.access(path, os.W_OK) and status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH:
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="jointembed-"))


def _build(compiler: str, num_terms: int) -> ctypes.CDLL:
    capability = torch.backends.cpu.get_cpu_capability()
    flags = ["-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-x", "c++"]
    flags += [f"-DK={num_terms}", *VECTOR_FLAGS.get(capability, [])]
    digest = hashlib.sha256("\n".join([SOURCE, compiler, os.uname().machine, *flags]).encode()).hexdigest()[:16]
    library = _cache_directory() / f"epps_pulley_{digest}.so"
    if library.is_symlink() or not library.exists() or library.stat().st_uid != os.getuid():
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            compile_object = [compiler, *flags, "-c", "-", "-o", f"{scratch}/kernel.o"]
            subprocess.run(compile_object, input=SOURCE, text=True, check=True, capture_output=True, timeout=120)
            link = [compiler, "-shared", f"{scratch}/kernel.o", "-o", f"{scratch}/kernel.so"]
            subprocess.run(link, check=True, capture_output=True, timeout=120)
            os.replace(f"{scratch}/kernel.so", library)  # atomic: two processes may build at once
    return ctypes.CDLL(str(library))


def _threads(elements: int) -> int:
    """One for each 2^14 elements: small work is not worth waking a thread for."""
    return min(torch.get_num_threads(), 1 + elements // 2**14)


class NativeKernels:
    """``sums`` and ``gradient`` on float32 CPU rows, drop-in for the functions of the same names in PyTorch."""

    def __init__(self, library: ctypes.CDLL, num_terms: int) -> None:
        pointer, long = ctypes.c_void_p, ctypes.c_long
        library.sums.argtypes = [pointer, long, long, ctypes.c_float, pointer, ctypes.c_int]
        library.gradient.argtypes = [pointer, long, long, ctypes.c_float, pointer, pointer, ctypes.c_int]
        library.normals.argtypes = [ctypes.c_uint64, pointer, long, pointer, long, pointer, ctypes.c_int]
        library.sums.restype = library.gradient.restype = library.normals.restype = None
        self.library = library
        self.num_terms = num_terms

    def sums(self, rows: Tensor, step: float, num_terms: int) -> Tensor:
        out = torch.empty(len(rows), num_terms, 2)
        turns = step / (2 * math.pi)
        self.library.sums(rows.data_ptr(), *rows.shape, turns, out.data_ptr(), _threads(rows.numel()))
        return torch.view_as_complex(out)

    def gradient(self, rows: Tensor, step: float, coefficients: Tensor) -> Tensor:
        d, out = coefficients.resolve_conj().contiguous(), torch.empty_like(rows)
        pointers = d.data_ptr(), out.data_ptr()
        self.library.gradient(rows.data_ptr(), *rows.shape, step / (2 * math.pi), *pointers, _threads(rows.numel()))
        return out

    def normals(self, key: int, radius: Tensor, pairs: int) -> Tensor:
        words, out = torch.empty((pairs + 1) // 2, dtype=torch.int64), torch.empty(2, pairs)
        pointers = radius.data_ptr(), pairs, out.data_ptr()
        self.library.normals(key, words.data_ptr(), len(words), *pointers, _threads(pairs))
        return out


@functools.cache
def kernels(num_terms: int = 8) -> NativeKernels | None:
    """The kernels for ``num_terms`` positive grid points, or None (said once in the log) if none can be built."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ["c++", "g++", "clang++"])), None)
    if compiler is None:
        logger.warning("compiled=True: no C++ compiler found, running the PyTorch version.")
        return None
    try:
        return NativeKernels(_build(compiler, num_terms), num_terms)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        logger.warning("compiled=True: %s failed (%s), running the PyTorch version.", compiler, error)
        return None
