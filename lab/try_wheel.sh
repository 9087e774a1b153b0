#!/bin/sh
# Install a wheel alone into a fresh environment and do the main jobs from it; the environment is removed again.
#
#   sh lab/try_wheel.sh python3.12 dist/leanformer-*.whl ["torch==2.11.*"]
set -eu
if [ $# -lt 2 ]; then
    echo "usage: $0 PYTHON WHEEL [REQUIREMENT …]" >&2
    exit 2
fi
python=$1
wheel=$(realpath "$2")
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
now() { date +%s; }

began=$(now)
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "$wheel" "$@"
echo "$python: installed in $(($(now) - began)) s, $(du -sm "$folder/venv" | cut -f 1) MB; wheel $(du -k "$wheel" | cut -f 1) kB"

cd "$folder"
PATH="$folder/venv/bin:$PATH"
unset PYTHONPATH
leanformer --version
began=$(date +%s%N)
leanformer --help >/dev/null
echo "leanformer --help: $((($(date +%s%N) - began) / 1000000)) ms"

began=$(now)
leanformer demo --output demo --epochs 2 --lean-epochs 1 >demo.log || { tail -n 20 demo.log; exit 1; }
test -s demo/lean/report.html
echo "demo (short): $(($(now) - began)) s"

# a model of timm's for tests and drawn pictures stand for one's own
python - <<'END'
import pathlib
import timm, torch
from PIL import Image

torch.save(timm.create_model("test_vit").state_dict(), "vit.pth")
pathlib.Path("photos").mkdir()
for number in range(80):
    pixels = torch.randint(0, 256, (160, 160, 3), generator=torch.Generator().manual_seed(number))
    Image.fromarray(pixels.byte().numpy()).save(f"photos/{number:04d}.png")
END
began=$(now)
code=0
leanformer lean test_vit --checkpoint vit.pth --data photos/ --speedup 1.1 --no-train --runtime eager --plans 10 \
    --images 32 --output runs/lean >lean.log || code=$?
test -s runs/lean/lean.safetensors || { tail -n 20 lean.log; exit 1; } # 1: made, but slower than asked for
echo "lean --no-train: $(($(now) - began)) s, exit code $code"
leanformer export runs/lean/lean.safetensors --format torch --output lean.pt2 >export.log || { tail -n 20 export.log; exit 1; }
echo "$python: the wheel works alone"
