#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes, each step under a limit of its own:
#   1. the tests of the ports with backend 'cuda'     2. compute-sanitizer on small shapes, where it is installed
#   3. 250 repeats of every port, bit for bit         4. medians of CUDA events beside PyTorch and the bandwidth of a copy
# Needs Python with NumPy, SciPy, ml_dtypes, pytest and CuPy; PyTorch where there is one. No network, no installation.
#   OUT=folder PYTHON=python3 bash gpu/device_run.sh        writes $OUT/device.json, $OUT/*.txt and prints the table for DEVICE.md
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-device_run}
mkdir -p "$OUT"

# The folders are the sub-packages of `oracles`: links stand in for an installation.
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
mkdir "$links/oracles"
for folder in reference properties golden gpu tools; do
  [ -d "$folder" ] && ln -s "$PWD/$folder" "$links/oracles/$folder"
done
export PYTHONPATH="$links" ORACLES_BACKEND=cuda OPENBLAS_NUM_THREADS=4

status=0
step() {  # name, seconds, command...: its output into $OUT/name.txt, its end on the screen
  local name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" >"$OUT/$name.txt" 2>&1
  local code=$?
  tail -n 3 "$OUT/$name.txt"
  echo "$name $code" >>"$OUT/steps.txt"
  [ $code -eq 0 ] || status=1
}

rm -f "$OUT/steps.txt"
nvidia-smi >"$OUT/nvidia-smi.txt" 2>&1
step tests 170 "$PYTHON" -m pytest tests/gpu/test_ports.py tests/gpu/test_cache_ports.py tests/gpu/test_decoding_ports.py \
  tests/gpu/test_compression_ports.py tests/gpu/test_training_ports.py tests/gpu/test_expert_ports.py -q -m gpu \
  -o addopts=--import-mode=importlib -k "not dropped and not schedule and not checked_run and not without_a_device and not broken_kernel and not planted"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck synccheck; do
    step "$tool" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" -m oracles.gpu.device_timing --repeats 1 --small
  done
else
  echo "== compute-sanitizer is not installed" | tee "$OUT/sanitizer.txt"
fi
step repeats 60 "$PYTHON" -m oracles.gpu.device_timing --repeats 250 --small
step timing 120 "$PYTHON" -m oracles.gpu.device_timing --json "$OUT/device.json"
cat "$OUT/timing.txt"
cat "$OUT/steps.txt"
exit $status
