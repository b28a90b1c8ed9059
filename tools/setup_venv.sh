#!/bin/sh
# Make .venv and install minidnn into it with what one target of the Makefile needs.
#
#     tools/setup_venv.sh demo|docs|test
#
# PYTHON names the interpreter; without it the first suitable one of the usual names is taken.
# Needs no root; writes nothing outside .venv but pip's own cache.
set -eu
cd "$(dirname "$0")/.."

EXTRA=$1
VENV=.venv
TORCH=2.13.0 # as in setup.cfg; tests/packaging compares
TORCHVISION=0.28.0
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# Exit status 0 if $1 is a Python of at least 3.11 that can make a virtual environment.
suitable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "minidnn needs Python 3.11 or newer with the venv module${PYTHON:+; PYTHON=$PYTHON is not}." >&2
    echo "Install one (Debian: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3" >&2
    return 1
}

# Compiling every file of every package takes pip half of the time; Python compiles the third of
# them that is ever imported when it first is.
pip_install() {
    "$VENV/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check "$@"
}

# PyTorch for Linux on PyPI pulls several GB of CUDA packages.  Where a CPU-only build of the same
# version is offered anyway (a local wheel, a mirror), pip prefers it; elsewhere PyTorch's own
# index has it.
install_torch() {
    if ! "$VENV/bin/python" -m pip index versions torch 2>/dev/null | grep -q -F "$TORCH+cpu"; then
        pip_install "torch==$TORCH" --extra-index-url "$TORCH_CPU_INDEX"
    fi
    # The torchvision on PyPI is built for CUDA; only its Python models are used (see
    # minidnn/bench/torchvision_models.py), so it comes without dependencies.
    pip_install --no-deps "torchvision==$TORCHVISION"
}

case $EXTRA in demo | docs | test) ;; *)
    echo "usage: $0 demo|docs|test" >&2
    exit 2
    ;;
esac

# An interrupted set-up may have left an environment without pip.
if ! suitable "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "setting up $VENV with $("$python" --version)" >&2
    "$python" -m venv --clear "$VENV"
    # Finding what fits together takes the pip that comes with Python 3.11 twice as long as today's.
    pip_install --upgrade pip || echo "going on with pip as Python has it" >&2
fi
echo "installing minidnn[$EXTRA] into $VENV (a few minutes the first time)" >&2
if [ "$EXTRA" = test ]; then
    install_torch
fi
# Else pip shows what setuptools says of each editable installation.
export PYTHONWARNINGS="ignore:Editable installation"
pip_install --editable ".[$EXTRA]"
touch "$VENV/.$EXTRA"
