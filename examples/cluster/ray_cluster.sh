#!/bin/sh
# Predict over the machines of a Slurm job: one Ray node each, one model a GPU (or CPU core where there are none).
#
#   sbatch --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 ray_cluster.sh lean.safetensors /shared/photos /shared/answers.parquet
#
# Without Slurm it runs as it stands on one machine. Pictures must lie where all machines reach them; the model and the
# rows travel through Ray. Given again after a kill, the same command goes on where it was.
#SBATCH --job-name leanformer-predict
#SBATCH --exclusive
set -eu
if [ $# -lt 3 ]; then
    echo "usage: $0 MODEL SOURCE OUTPUT [OPTIONS of leanformer predict]" >&2
    exit 2
fi
model=$1 source=$2 output=$3
shift 3

if [ -z "${SLURM_JOB_NODELIST:-}" ]; then
    exec leanformer predict "$model" "$source" --output "$output" --engine ray "$@"
fi

port=${RAY_PORT:-6379}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes 1 --ntasks 1 --nodelist "$head" hostname --ip-address | awk '{ print $1 }'):$port

srun --overlap --nodes 1 --ntasks 1 --nodelist "$head" ray start --head --port "$port" --block &
sleep 15
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --overlap --nodes $((SLURM_JOB_NUM_NODES - 1)) --ntasks-per-node 1 --exclude "$head" \
        ray start --address "$address" --block &
    sleep 15
fi
srun --overlap --nodes 1 --ntasks 1 --nodelist "$head" \
    leanformer predict "$model" "$source" --output "$output" --engine ray --address "$address" "$@"
