#!/usr/bin/env bash
# Trains on a Cloud TPU, from creating it to deleting it; see tpu_vm.md.
#
#   NAME=my-tpu ZONE=us-west4-a TYPE=v5litepod-8 MODEL_DIR=gs://bucket/run \
#       docs/tpu_vm.sh all --gin_file=experiments/tpu_mnist.gin --data_dir=...
#
#   all FLAGS     create, install, run, watch and delete
#   create        queue for a new TPU, and wait until it is there
#   install       copy this checkout's last commit to it, and install that
#   run FLAGS     start `python -m trainer FLAGS`, in tmux on the first host
#   watch FLAGS   wait for the end; create a preempted TPU again, and go on
#   log           show what the run prints
#   delete        delete the TPU and its place in the queue
#
# Also read from the environment: SPOT=1, which may be preempted; VERSION, the
# TPU software; SERVICE_ACCOUNT, an e-mail address; POLL_SECONDS (30).
set -euo pipefail

case ${1:-} in
  all | create | install | run | watch | log | delete) ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
: "${NAME:?is the name of the TPU}" "${ZONE:?is its zone}"
: "${TYPE:?is the type of accelerator, such as v5litepod-8}"
: "${MODEL_DIR:?is the run directory, such as gs://bucket/run}"
POLL_SECONDS=${POLL_SECONDS:-30}
if [[ -z ${VERSION:-} ]]; then
  case $TYPE in
    v6e-*) VERSION=v2-alpha-tpuv6e ;;
    v5p-*) VERSION=v2-alpha-tpuv5 ;;
    v5litepod-*) VERSION=v2-alpha-tpuv5-lite ;;
    v[234]-*) VERSION=tpu-ubuntu2204-base ;;
    *)
      echo "TYPE=$TYPE: set VERSION to the TPU software that it needs" >&2
      exit 2
      ;;
  esac
fi

tpus() { gcloud compute tpus "$@" --zone="$ZONE"; }

# Runs a command on one host (a number) or on all of them.
on() { tpus tpu-vm ssh "$NAME" --worker="$1" --command="$2"; }

state() {
  tpus queued-resources describe "$NAME" --format='value(state.state)'
}

hosts() {
  tpus tpu-vm describe "$NAME" \
    --format='value[delimiter=" "](networkEndpoints[].ipAddress)'
}

request() {
  local options=()
  [[ -z ${SPOT:-} ]] || options+=(--spot)
  [[ -z ${SERVICE_ACCOUNT:-} ]] ||
    options+=("--service-account=$SERVICE_ACCOUNT")
  tpus queued-resources create "$NAME" --node-id="$NAME" \
    --accelerator-type="$TYPE" --runtime-version="$VERSION" \
    ${options[@]+"${options[@]}"}
}

await() {
  local now
  until now=$(state) && [[ $now == ACTIVE ]]; do
    echo "$NAME: $now"
    case $now in
      FAILED | SUSPENDING | SUSPENDED) return 1 ;;
    esac
    sleep "$POLL_SECONDS"
  done
}

create() {
  request
  await
}

install() {
  local folder
  folder=$(mktemp -d)
  git -C "$(dirname "${BASH_SOURCE[0]}")/.." archive \
    --output="$folder/source.tar.gz" HEAD
  tpus tpu-vm scp "$folder/source.tar.gz" "$NAME": --worker=all
  rm -r "$folder"
  # The image's Python is too old; uv brings one of its own.
  on all 'set -eu
    mkdir -p trainer
    tar -xzf source.tar.gz -C trainer
    command -v tmux >/dev/null || sudo apt-get install --yes --quiet tmux
    python3 -m pip install --quiet --user uv
    rm -rf venv
    ~/.local/bin/uv venv --quiet --python 3.12 venv
    ~/.local/bin/uv pip install --quiet --python venv/bin/python \
      -e "./trainer[tpu]"'
  # Several hosts: a server on each has its chips, and the run has none.
  if [[ $(hosts) == *" "* ]]; then
    on all 'tmux kill-session -t server 2>/dev/null || true
      tmux new-session -d -s server \
        env GCS_READ_CACHE_BLOCK_SIZE_MB=1 venv/bin/start_grpc_tpu_worker'
  fi
}

# The flag by which a run finds its TPU.
tpu() {
  local address list="" addresses
  addresses=$(hosts)
  for address in $addresses; do
    list+=",grpc://$address:8470"
  done
  [[ $addresses == *" "* ]] && echo "--tpu=${list#,}" || echo "--tpu=local"
}

run() {
  local folder place
  folder=$(mktemp -d)
  place=$(tpu)
  cat >"$folder/run.sh" <<END
export GCS_READ_CACHE_BLOCK_SIZE_MB=1
$([[ $place == --tpu=local ]] || echo export TPU_LOAD_LIBRARY=0)
cd trainer
# The launcher starts it again after a failure that may be transient.
../venv/bin/python -m trainer.launch --num_workers=1 -- --strategy=tpu \
  $place --model_dir=$(printf '%q' "$MODEL_DIR")${*:+$(printf ' %q' "$@")} \
  2>&1 | tee -a ../run.log
echo \${PIPESTATUS[0]} >../run.code
END
  tpus tpu-vm scp "$folder/run.sh" "$NAME": --worker=0
  rm -r "$folder"
  on 0 'rm -f run.code; tmux new-session -d -s run bash run.sh'
}

watch() {
  local code now
  while true; do
    now=$(state) || now=UNKNOWN
    case $now in
      ACTIVE)
        # Empty while it runs, or while the host cannot be reached.
        code=$(on 0 'cat run.code 2>/dev/null || true') || code=""
        if [[ $code == 75 ]]; then
          echo "$NAME: the run has left in order, and starts again"
          run "$@"
        elif [[ -n $code ]]; then
          echo "$NAME: the run has ended with exit code $code"
          return "$code"
        fi
        ;;
      SUSPENDED | FAILED)
        echo "$NAME: preempted; the run goes on with another TPU"
        delete
        create
        install
        run "$@"
        ;;
      *) echo "$NAME: $now" ;;
    esac
    sleep "$POLL_SECONDS"
  done
}

log() { on 0 'tail -n 100 -f run.log'; }

delete() { tpus queued-resources delete "$NAME" --force --quiet; }

all() {
  # Refused where there is one of this name: that one is not ours to delete.
  request
  # Whatever happens: an idle TPU costs as much as a busy one.
  trap delete EXIT
  await
  install
  run "$@"
  watch "$@"
}

"$@"
