#!/bin/sh
#SBATCH --job-name=windlass-r-bcdfghjkmn.1
#SBATCH --comment=windlass:779c2e0a55b8:r-bcdfghjkmn.1
#SBATCH --nodes=1
#SBATCH --nodelist=n1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=TERM@70
#SBATCH --no-requeue
#SBATCH --export=ALL
#SBATCH --output=/shared/windlass/runs/r-bcdfghjkmn/attempts/1/slurm.log
#SBATCH --open-mode=append

exec srun --ntasks-per-node=1 --cpus-per-task=2 --kill-on-bad-exit=1 --export=ALL /opt/python/bin/python3 -I -S /shared/windlass/agent/0123456789abcdef/__main__.py step /shared/windlass/runs/r-bcdfghjkmn/attempts/1
