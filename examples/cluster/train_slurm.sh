#!/bin/sh
# Train over the machines of a Slurm job: one torchrun each, one process a GPU.
#
#   sbatch --nodes 2 --gpus-per-node 8 train_slurm.sh deit_small_patch16_224 \
#       --apply evit --data /shared/imagenet --output /shared/runs/lean
#
# Without Slurm it runs as it stands on one machine, with PROCESSES processes (2 unless set).
#SBATCH --job-name leanformer-train
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
set -eu
if [ $# -lt 1 ]; then
    echo "usage: $0 MODEL [OPTIONS of leanformer train]" >&2
    exit 2
fi
if [ -z "${SLURM_JOB_NODELIST:-}" ]; then
    exec torchrun --standalone --nproc-per-node "${PROCESSES:-2}" -m leanformer train "$@"
fi
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:${RDZV_PORT:-29500}" \
    -m leanformer train "$@"
