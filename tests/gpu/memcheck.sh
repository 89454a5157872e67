#!/usr/bin/env bash
# Runs our kernels under NVIDIA's memory checker: any access outside of an allocation, or misaligned, fails.
#
#   tests/gpu/memcheck.sh [pytest options]      e.g. -k write_qkv, or -v
#
# Needs a GPU and compute-sanitizer (of the CUDA toolkit; $COMPUTE_SANITIZER names it if it is not on the PATH).
# Kernels run 10 to 50 times as slow, so each group is a selection: every kernel, the shapes with masked edges, one
# half-precision type. PyTorch's caching allocator hands out parts of large blocks, within which the checker sees no
# bounds: it is turned off, and with it the tests that capture graphs, which need it. One test of the sampler is left out
# that watches when an object is freed, which is later under the checker.
set -uo pipefail
cd "$(dirname "$0")/../.."

sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
if [[ ! -x $sanitizer ]]; then
    echo "memcheck: compute-sanitizer was not found; install the CUDA toolkit, or set COMPUTE_SANITIZER" >&2
    exit 2
fi

export PYTORCH_NO_CUDA_MEMORY_CACHING=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()

check() { # check NAME SELECTION PATH...
    local name=$1 selection=$2 started=$SECONDS status=0
    shift 2
    "$sanitizer" --tool memcheck --padding 64 --error-exitcode 99 --target-processes all --print-limit 20 \
        python3 -m pytest -p no:cacheprovider -m gpu -k "$selection" "$@" "${options[@]}" 2>&1 | tee "$log" || status=$?
    # A run that skipped everything checked nothing.
    if [[ $status -eq 0 ]] && ! grep -Eq '[0-9]+ passed' "$log"; then status=5; fi
    if [[ $status -ne 0 ]]; then failed+=("$name (status $status)"); fi
    echo "memcheck: $name took $((SECONDS - started)) s, status $status"
}

options=("$@")
half='bfloat16 and (d64-p16-9:3 or d128-p64-8:2 or d72-p16-2:2)'
steps='mixed_batch or page_end or packed_sequences'
usual='many_decodes or long_prompt or forward_norms'

check "products, norms, KV writes" "not graph and not float16 or bfloat16 and not graph" tests/kernels
check "sampler" "not graph and not interpreter and not 256-151936 and not given_back" tests/sampler
check "products of 4-bit weights" "on_a_gpu and not graph" plugins/quant/w4a16
check "products of 8-bit integers" "on_a_gpu and not graph" plugins/quant/w8a8-cutlass/tests/test_kernels.py
check "attention: triton" "$half and ($steps) or bfloat16 and ($usual)" plugins/attention/triton
check "attention: torch" "OnCuda and $half and mixed_batch" plugins/attention/torch
if python3 -c 'import flashinfer' 2>/dev/null; then
    check "attention: flashinfer" "TestFa2 and (d64-p16-9:3 or d128-p64-8:2) and (mixed_batch or page_end)" \
        plugins/attention/flashinfer
fi

if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'memcheck: FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "memcheck: no errors"
