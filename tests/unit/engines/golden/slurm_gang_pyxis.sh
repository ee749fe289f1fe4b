#!/bin/sh
#SBATCH --job-name=windlass-r-bcdfghjkmn.2
#SBATCH --comment=windlass:779c2e0a55b8:r-bcdfghjkmn.2
#SBATCH --nodes=2
#SBATCH --nodelist=n7,n3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=65536M
#SBATCH --gres=gpu:4
#SBATCH --time=63
#SBATCH --partition=gpu
#SBATCH --no-requeue
#SBATCH --export=ALL
#SBATCH --output=/shared/windlass/runs/r-bcdfghjkmn/attempts/2/slurm.log
#SBATCH --open-mode=append

exec srun --ntasks-per-node=1 --cpus-per-task=16 --kill-on-bad-exit=1 --export=ALL '--container-image=nvcr.io#nvidia/pytorch:26.09-py3' --no-container-mount-home '--container-mounts=/shared/windlass:/shared/windlass,/data/my project:/data/my project' python3 -I -S /shared/windlass/agent/0123456789abcdef/__main__.py step /shared/windlass/runs/r-bcdfghjkmn/attempts/2
