#!/usr/bin/env bash
# Measures a machine with one GPU, which needs no network and may lack Python packages; see README.md beside this file.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TEXT'
usage: one_gpu.sh [--minutes 10] [--out lab] [--python python3] [--wheels DIR] [--venv DIR] [-- OPTIONS]
           measures the GPU of this machine by `commsim gpu` and writes DIR lab, lab.zip and lab/comparison.md
       one_gpu.sh --check [--python python3]
           says what this machine has and lacks; changes nothing
       one_gpu.sh --pack [--python 3.12] [--machine x86_64] [--wheels DIR] [PACKAGE...]
           on a machine with network: downloads wheels for a machine without

  --minutes N    how long to measure (default 10)
  --out DIR      folder of what is measured (default lab, here)
  --python P     measuring: the Python that has torch (default python3); packing: the version of that one, such as 3.12
                 (default: that of python3 here)
  --machine M    packing: x86_64 or aarch64 (default: this one's)
  --wheels DIR   the wheels (default: wheels, beside this script)
  --venv DIR     environment that is made (default: out/one-gpu-venv in the checkout)
  -- OPTIONS     further options of `commsim gpu`, such as -- --only collectives,rates
  PACKAGE...     packing: these alone; default all that commsim needs, nvidia-ml-py and pip

torch is not carried: a machine with a GPU has one that fits its driver, and that one is used. Where it has none, pack it
too: one_gpu.sh --pack torch (some GB).

The exit status is that of `commsim gpu`: 0, 1 after a fault (what was measured is kept; the same command goes on), 130
after an interrupt; 2 where this script cannot begin.
TEXT
}

say() { printf '# %s\n' "$*"; }
refuse() {
  printf 'one_gpu.sh: %s\n' "$*" >&2
  exit 2
}

mode=measure minutes=10 out=lab python= machine=$(uname -m) wheels=$here/wheels venv=$root/out/one-gpu-venv
further=() packages=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --check) mode=check ;;
    --pack) mode=pack ;;
    --minutes | --out | --python | --machine | --wheels | --venv)
      [ $# -ge 2 ] || refuse "found $1 without a value (--help)"
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    --) shift; further=("$@"); break ;;
    -*) refuse "found the unknown option $1 (--help)" ;;
    *) packages+=("$1") ;;
  esac
  shift
done
[ $mode = pack ] || [ ${#packages[@]} -eq 0 ] || refuse "found ${packages[*]}, expected names of packages after --pack only"
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || refuse "found --minutes $minutes, expected a number"

# What commsim needs, a requirement a line, from its own list.
needs() {
  "$1" - "$root/pyproject.toml" <<'CODE'
import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"], sep="\n")
CODE
}

expect_python() {
  command -v "$1" >/dev/null || refuse "found no $1, expected Python 3.11 or later (--python)"
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || refuse "$1 is $("$1" --version 2>&1), expected Python 3.11 or later (--python)"
}

pack() {
  local host=python3 wanted platforms=() glibc
  expect_python $host
  wanted=${python:-$($host -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
  [[ $wanted =~ ^3\.[0-9]+$ ]] || refuse "found --python $wanted, expected a version to pack for, such as 3.12"
  for glibc in 28 27 17; do platforms+=(--platform "manylinux_2_${glibc}_$machine"); done
  if [ ${#packages[@]} -eq 0 ]; then
    mapfile -t packages < <(needs $host)
    packages+=(nvidia-ml-py pip)
  fi
  mkdir -p "$wheels"
  say "packing for Python $wanted, glibc 2.28 or later, $machine: ${packages[*]}"
  $host -m pip download --quiet --disable-pip-version-check --only-binary :all: --implementation cp \
    --python-version "$wanted" "${platforms[@]}" --platform "manylinux2014_$machine" \
    --dest "$wheels" --constraint "$root/constraints.txt" "${packages[@]}"
  say "$(find "$wheels" -name '*.whl' | wc -l) wheels, $(du -sh "$wheels" | cut -f1), in $wheels"
  say "take the checkout with this folder to the machine, and run there: validation/gpu/one_gpu.sh"
}

check() {
  local own=${python:-python3}
  expect_python "$own"
  needs "$own" | "$own" -c '
import importlib.metadata as m, platform, re, sys
print("# Python", platform.python_version(), "on", platform.machine(), *platform.libc_ver())
missing = []
for need in [*sys.stdin.read().split("\n"), "torch", "nvidia-ml-py"]:
    if name := re.match(r"[\w.-]*", need)[0]:
        try:
            print(f"{name:20} {m.version(name):12} needed: {need}")
        except m.PackageNotFoundError:
            print(f"{name:20} missing      needed: {need}")
            missing += [name]
where = ".".join(platform.python_version_tuple()[:2])
names = " ".join(missing)
print(f"# to pack for it: one_gpu.sh --pack --python {where} --machine {platform.machine()} {names}" if missing
      else "# nothing is missing")
'
  "$own" -c '
import torch
n = torch.cuda.device_count()
print(f"# torch {torch.__version__} sees {n} GPU" + "s" * (n != 1), *{torch.cuda.get_device_name(i) for i in range(n)})
if n:
    print("# NCCL", ".".join(map(str, torch.cuda.nccl.version())))
' 2>/dev/null || say "torch cannot be imported"
}

# An environment that sees what the Python with torch sees, and adds what is missing; made once, mended when called again.
prepare() {
  local own=${python:-python3} carried=("$wheels"/pip-*.whl) pip
  expect_python "$own"
  if [ ! -x "$venv/bin/python" ]; then
    say "making $venv"
    "$own" -m venv --system-site-packages --without-pip "$venv"
  fi
  # --system-site-packages shows those of the first Python alone: one that is in an environment shows its own here.
  "$own" -c 'import site, sys; print(*(site.getsitepackages() if sys.prefix != sys.base_prefix else []), sep="\n")' \
    > "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
  mapfile -t packages < <(needs "$own")
  if compgen -G "$wheels/nvidia_ml_py-*.whl" >/dev/null; then packages+=(nvidia-ml-py); fi
  if [ -e "${carried[0]}" ]; then pip=("${carried[0]}/pip"); else pip=(-m pip); fi
  say "installing what is missing from $wheels, without a network"
  "$venv/bin/python" "${pip[@]}" install --quiet --disable-pip-version-check --no-index --find-links "$wheels" \
    "${packages[@]}" \
    || refuse "packages are missing: see one_gpu.sh --check, and pack them where there is a network (--pack)"
  if ! "$venv/bin/python" -c 'import torch' 2>/dev/null && compgen -G "$wheels/torch-*.whl" >/dev/null; then
    "$venv/bin/python" "${pip[@]}" install --quiet --disable-pip-version-check --no-index --find-links "$wheels" torch
  fi
  local said
  said=$("$venv/bin/python" -c 'import torch; print(torch.__version__)' 2>&1) \
    || refuse "torch cannot be imported (${said##*$'\n'}); name the Python that has one (--python), or --pack torch"
  say "torch $said of this machine"
}

measure() {
  local status=0
  prepare
  # Sockets between the ranks whatever the version of NCCL: from 2.30.3 on it would copy within the GPU.
  export NCCL_MULTI_RANK_GPU_ENABLE=${NCCL_MULTI_RANK_GPU_ENABLE:-0}
  export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
  say "commsim gpu --minutes $minutes --out $out ${further[*]-}"
  "$venv/bin/python" -m commsim gpu --minutes "$minutes" --out "$out" ${further[@]+"${further[@]}"} || status=$?
  if [ -d "$out" ]; then
    "$venv/bin/python" "$here/compare.py" "$out" > "$out/comparison.md" || status=$((status ? status : 1))
    say "wrote $out/comparison.md; take home $out and $out.zip"
  fi
  return $status
}

case $mode in pack) pack ;; check) check ;; measure) measure ;; esac
