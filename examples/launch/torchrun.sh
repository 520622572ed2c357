#!/usr/bin/env bash
# Train on one machine or several, each started by hand with the same plans.
#
#   PLANS=plans.jsonl CHECKPOINTS=checkpoints GPUS=8 examples/launch/torchrun.sh
#   PLANS=… CHECKPOINTS=/shared/checkpoints GPUS=8 NODES=2 HEAD=host0 examples/launch/torchrun.sh
#
# PLANS is a plan file, or a job of a sidecar or service: http://HOST:8400/v1/jobs/JOB. A file is
# read on every machine, CHECKPOINTS is one folder for all. Further arguments go to the trainer.
set -euo pipefail

: "${PLANS:?a plan file, or the URL of a job}" "${CHECKPOINTS:?a folder that all ranks share}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF-expandable_segments:True}
# A collective that times out leaves its trace.
export TORCH_NCCL_DUMP_ON_TIMEOUT=${TORCH_NCCL_DUMP_ON_TIMEOUT-1}
export TORCH_FR_BUFFER_SIZE=${TORCH_FR_BUFFER_SIZE-2000}

exec torchrun \
  --nnodes "${NODES:-1}" --nproc-per-node "${GPUS:-8}" \
  --rdzv-backend c10d --rdzv-endpoint "${HEAD:-127.0.0.1}:${PORT:-29500}" \
  --rdzv-id "${RUN:-seqplan}" --max-restarts "${RESTARTS:-3}" \
  "$root/examples/train.py" --plans "$PLANS" --checkpoints "$CHECKPOINTS" \
  --device "${DEVICE:-cuda}" "$@"
