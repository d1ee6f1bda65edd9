#!/usr/bin/env bash
# A real SLURM of this one machine, with two virtual nodes, in a folder of its own.
#
#     eval "$(scripts/slurm_here.sh start FOLDER [PORT])"    start it; what it prints sets SLURM_CONF
#     scripts/slurm_here.sh status FOLDER                    its nodes and its queue
#     scripts/slurm_here.sh stop FOLDER                      cancel its jobs, stop it; the folder stays
#
# FOLDER is runs/slurm where none is named. PORT and the two after it (17002 to 17004) listen on 127.0.0.1 only.
# Nothing outside of FOLDER is written. Each node has two CPUs; partition `low` is the default, and jobs of
# partition `high` preempt those of `low`.

set -u

fail() {
    echo "$*" >&2
    exit 1
}

usage() {
    fail "usage: scripts/slurm_here.sh start|stop|status [FOLDER] [PORT]"
}

configure() {
    local host
    host=$(uname -n)
    mkdir -p "$folder/state" || fail "$folder cannot be made: choose another folder."
    cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=3600
ReturnToService=2
MpiDefault=none
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool-%n
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=2 RealMemory=10000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=2 RealMemory=10000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=4
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
CONF
}

# The process ids of this folder's daemons; a pid file may be older than the last boot of the machine.
daemons() {
    local file pid
    for file in "$folder"/slurmctld.pid "$folder"/slurmd-*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "-f $SLURM_CONF"; then echo "$pid"; fi
    done
}

halt() {
    local pids
    pids=$(daemons)
    [ -z "$pids" ] || kill $pids
    for _ in $(seq 300); do
        [ -n "$(daemons)" ] || return 0
        sleep 0.1
    done
    kill -KILL $(daemons)
}

start() {
    local command missing="" number
    for command in slurmctld slurmd sbatch srun scontrol squeue; do
        command -v "$command" >/dev/null || missing="$missing $command"
    done
    [ -z "$missing" ] || fail "SLURM is not installed, there is no${missing}. On Debian and Ubuntu:" \
        "apt-get install --no-install-recommends slurmctld slurmd slurm-client"
    [ -z "$(daemons)" ] || fail "A SLURM is running in $folder already. Use it: export SLURM_CONF=$SLURM_CONF"
    for number in "$port" $((port + 1)) $((port + 2)); do
        if (: <"/dev/tcp/127.0.0.1/$number") 2>/dev/null; then
            fail "Port $number is in use. Name another first port: scripts/slurm_here.sh start $folder 27002"
        fi
    done
    configure
    for command in "slurmctld -f $SLURM_CONF" "slurmd -f $SLURM_CONF -N n1" "slurmd -f $SLURM_CONF -N n2"; do
        $command >>"$folder/start.log" 2>&1 || { halt; fail "${command%% *} did not start, see $folder/start.log."; }
    done
    for _ in $(seq 300); do
        if [ "$(sinfo --noheader --partition=low --states=idle --format=%D 2>/dev/null)" = 2 ]; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 0.1
    done
    halt
    fail "The nodes did not come up in 30 seconds, see the logs in $folder."
}

# Jobs outlive slurmd, so they end first: their processes are killed, and what starts in between is cancelled.
stop() {
    local pids
    [ -n "$(daemons)" ] || fail "No SLURM is running in $folder."
    scancel --state=PENDING --user="$(id -un)" 2>/dev/null
    pids=$(for node in n1 n2; do scontrol listpids "*" "$node"; done 2>/dev/null | awk '$1 ~ /^[0-9]+$/ {print $1}')
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null
    scancel --user="$(id -un)" 2>/dev/null
    for _ in $(seq 300); do
        [ -n "$(squeue --noheader --format=%A 2>/dev/null)" ] || break
        sleep 0.1
    done
    halt
}

status() {
    [ -n "$(daemons)" ] || fail "No SLURM is running in $folder."
    sinfo && squeue
}

[ $# -ge 1 ] && [ $# -le 3 ] || usage
folder=$(realpath --canonicalize-missing -- "${2:-runs/slurm}")
port=${3:-17002}
case $folder in *[[:space:]]*) fail "SLURM takes no folder with a blank in its name: $folder" ;; esac
case $port in *[!0-9]*) fail "PORT is a number, not $port." ;; esac
[ "$port" -ge 1024 ] && [ "$port" -le 65000 ] || fail "PORT is a number from 1024 to 65000, not $port."
export SLURM_CONF=$folder/slurm.conf
case $1 in
    start | stop | status) "$1" ;;
    *) usage ;;
esac
