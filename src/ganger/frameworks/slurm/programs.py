"""The programs that a batch script of Slurm finds on its PATH, and the one that starts it."""

from typing import Final

BATCH: Final = """\
#!/bin/sh
# Run by ganger: batch COMMAND... SBATCH_OUTPUT and SBATCH_ERROR name files that get a copy of the output.
PATH=$GANGER_TASK_DIR:$PATH
SLURM_SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}
export PATH SLURM_SUBMIT_DIR
run='SLURM_TASK_PID=$$; export SLURM_TASK_PID; exec "$@"'
[ -n "$SBATCH_OUTPUT$SBATCH_ERROR" ] || exec /bin/sh -c "$run" sh "$@"

file_name() {
  printf %s "$1" | sed -e "s|%A|${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}|g; s|%a|${SLURM_ARRAY_TASK_ID:-4294967294}|g" \\
    -e "s|%j|$SLURM_JOB_ID|g; s|%J|$SLURM_JOB_ID|g; s|%x|$SLURM_JOB_NAME|g; s|%N|$SLURMD_NODENAME|g" \\
    -e "s|%u|$(id -un)|g; s|%[nst]|0|g"
}

copy() {  # PIPE FILE
  mkfifo "$1" && mkdir -p "$(dirname "$2")" || exit 73
  [ "$SLURM_RESTART_COUNT" != 0 ] || [ "$2" = /dev/null ] || : > "$2" || exit 73
  (trap '' HUP INT TERM USR1 USR2; exec tee -a "$2" < "$1") &
}

output=$(file_name "${SBATCH_OUTPUT:-/dev/null}")
errors=$(file_name "${SBATCH_ERROR:-$output}")
copy "$GANGER_TASK_DIR/stdout.pipe" "$output"
copies=$!
copy "$GANGER_TASK_DIR/stderr.pipe" "$errors" >&2
copies="$copies $!"
trap : HUP INT TERM USR1 USR2
/bin/sh -c "$run" sh "$@" > "$GANGER_TASK_DIR/stdout.pipe" 2> "$GANGER_TASK_DIR/stderr.pipe"
code=$?
# What the script left in the background holds the pipes open.
(sleep 5; kill -9 $copies) > /dev/null 2>&1 &
wait $copies
exit $code
"""
SRUN: Final = """\
#!/bin/sh
exec "$GANGER_TASK_DIR/agent" --srun "$@"
"""
SCONTROL: Final = """\
#!/bin/sh
# The one thing that batch scripts ask of it.
case "$1 $2" in
  "show hostnames" | "show hostname") printf '%s\\n' "${3:-$SLURM_JOB_NODELIST}" | tr , '\\n' ;;
  *) echo "scontrol $*: a job of ganger has only: scontrol show hostnames [LIST]" >&2; exit 1 ;;
esac
"""
