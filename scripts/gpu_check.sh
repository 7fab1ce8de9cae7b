#!/usr/bin/env bash
# On a machine with a GPU: builds the preset `cuda` and runs what needs the device. One table and a few lines at the end;
# logs in the folder given (build/cuda/check).
#
#   scripts/gpu_check.sh [FOLDER]
#
# LOCKSTEP_TORCH_PYTHON (python3), EXACT_FILTER (a gtest filter; all layouts), EXACT_SHARDS (4)
set -u
cd "$(dirname "$0")/.."
folder=${1:-build/cuda/check}
mkdir -p "$folder"
export LOCKSTEP_TORCH_PYTHON=${LOCKSTEP_TORCH_PYTHON:-$(command -v python3)}
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$folder/home}
failed=0

say() { echo "== $(date +%T) $*"; }
must() {  # name, command...
  local name=$1
  shift
  if ! "$@" >"$folder/$name.log" 2>&1; then
    say "$name FAILED"
    grep -m 40 -A 4 -E "error:|FAILED:|Error|fault|undefined" "$folder/$name.log" | cut -c1-300
    tail -5 "$folder/$name.log" | cut -c1-400
    failed=1
    return 1
  fi
  say "$name ok"
}

must configure cmake --preset cuda || exit 1
must build_tests cmake --build --preset cuda --target \
  exact_layouts_test lockstep_engine_library comm_nccl_test comm_local_device_test comm_nccl_backend_test \
  cuda_kernels_test engine_cuda_device_step_test nn_device_test nn_device_encoder_test nn_image_device_test -- -k 0
[ -e build/cuda/tests/exact_layouts_test ] || exit 1
# One case first: whatever is wrong with all of them shows in a second.
LOCKSTEP_EXACT_DEVICE=cuda must first_case timeout 60 build/cuda/tests/exact_layouts_test \
  --gtest_filter='*/0_gpt_dp_2:*Models*/0' || exit 1
must build_cli cmake --build --preset cuda --target lockstep_cli -- -k 0 &
timeout "${EXACT_SECONDS:-400}" python3 tests/exact/gpu_gate.py build/cuda/tests/exact_layouts_test \
  --shards "${EXACT_SHARDS:-4}" --filter "${EXACT_FILTER:-*}" --output "$folder/exact.md" >"$folder/exact.log" 2>&1 ||
  { say "exactness gate FAILED"; failed=1; }
say "exactness gate over"
tail -60 "$folder/exact.log" | cut -c1-220
must device_exchange build/cuda/tests/comm_local_device_test
must nccl_backend build/cuda/tests/comm_nccl_backend_test
# Everything with the label: kernels, the fused step, layers on the device, NCCL. The gate above was `exact`.
must gpu_tests ctest --preset gpu -LE exact
wait
if [ -x build/cuda/lockstep ]; then
  cat docs/*.md >"$folder/text.txt"
  cat >"$folder/job.yaml" <<JOB
model: gpt2-124m
cluster: 1x1xH200
data: {kind: text, path: $(realpath "$folder/text.txt"), tokenizer: bytes}
precision: bf16
batch: {micro: 4, accumulation: 2, sequence_length: 1024}
layout: {dp: 1}
optimizer: {kind: adamw, learning_rate: 3e-4, schedule: cosine, warmup_steps: 5}
steps: 30
seed: 1
JOB
  run() { build/cuda/lockstep train "$folder/job.yaml" --no-record --json checkpoint.final=false "$@"; }
  must train_one_gpu run && tail -1 "$folder/train_one_gpu.log" | cut -c1-900
  must train_threads run cluster=1x4xH200 --backend local layout.dp=2 layout.tp=2 batch.micro=2 steps=10 &&
    tail -1 "$folder/train_threads.log" | cut -c1-900
  must train_nccl run --backend nccl steps=10 && tail -1 "$folder/train_nccl.log" | cut -c1-500
fi
exit $failed
