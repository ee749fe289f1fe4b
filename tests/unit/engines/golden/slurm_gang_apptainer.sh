#!/bin/sh
#SBATCH --job-name=windlass-r-bcdfghjkmn.2
#SBATCH --comment=windlass:779c2e0a55b8:r-bcdfghjkmn.2
#SBATCH --nodes=2
#SBATCH --nodelist=n7,n3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=65536M
#SBATCH --gres=gpu:4
#SBATCH --time=1-12:00:00
#SBATCH --partition=gpu,long
#SBATCH --account=team-a
#SBATCH --qos=high
#SBATCH --constraint=a100&nvlink
#SBATCH --reservation=maintenance
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --export=ALL
#SBATCH --switches=1
#SBATCH --mail-type=FAIL
#SBATCH --output=/shared/windlass/runs/r-bcdfghjkmn/attempts/2/slurm.log
#SBATCH --open-mode=append

exec /opt/slurm/bin/srun --ntasks-per-node=1 --cpus-per-task=16 --kill-on-bad-exit=1 --export=ALL apptainer exec --nv --bind /shared/windlass --bind '/data/my project' /images/torch.sif python3 -I -S /shared/windlass/agent/0123456789abcdef/__main__.py step /shared/windlass/runs/r-bcdfghjkmn/attempts/2
