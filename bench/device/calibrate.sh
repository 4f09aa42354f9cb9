#!/bin/sh
# On a machine with a GPU: what `monotile calibrate` measures there, twice, and the full sweep of products.
#   sh bench/device/calibrate.sh OUT     leaves its answers in the folder OUT; about four minutes
set -u
out=${1:?a folder}
mkdir -p "$out"
export MONOTILE_CACHE_DIR="${MONOTILE_CACHE_DIR:-$out/cache}"
python=${PYTHON:-python}
for round in 1 2; do
  start=$(date +%s)
  COLUMNS=160 $python -m monotile calibrate --target cuda --dry-run >"$out/calibrate_$round.txt" 2>"$out/calibrate_$round.err"
  echo "status $?, $(($(date +%s) - start)) s" >>"$out/calibrate_$round.txt"
done
$python -m monotile doctor >"$out/doctor.txt" 2>&1
$python -m pytest -q tests/gpu/test_calibrate.py >"$out/pytest.txt" 2>&1
$python -m bench.device.product_sweep run "$out/sweep.json" >"$out/sweep.txt" 2>&1
tail -n 40 "$out"/*.txt
