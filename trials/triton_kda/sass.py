"""python kda_dump.py FOLDER OUT [D]: TTGIR, PTX, SASS of prepare_kernel; instruction counts between labels"""
import sys, tempfile, subprocess, re, collections
from pathlib import Path
import torch, triton
from gdnspec.build.dry import intercept_launches
from gdnspec.build.loader import load_function
D = int(sys.argv[3]) if len(sys.argv) > 3 else 128
H, N, T = 32, 1, 8192
m = lambda *s, dtype=torch.float32: torch.empty(s, dtype=dtype, device="meta")
b = torch.bfloat16
args = {"q": m(T,H,D,dtype=b), "k": m(T,H,D,dtype=b), "v": m(T,H,D,dtype=b), "g": m(T,H,D), "beta": m(T,H), "cu_seqlens": m(N+1,dtype=torch.int64), "initial_state": m(N,H,D,D), "scale": None, "output": m(T,H,D,dtype=b), "final_state": m(N,H,D,D)}
ls = intercept_launches()
out = Path(sys.argv[2]); out.mkdir(parents=True, exist_ok=True)
with tempfile.TemporaryDirectory() as t:
    load_function(Path(sys.argv[1]), "kernel.py::prefill_k_last", Path(t))(**args)
k = next(l.kernel for l in ls if l.kernel.name.startswith("prepare"))
(out/"k.ttgir").write_text(k.asm["ttgir"]); (out/"k.ptx").write_text(k.asm["ptx"])
ptxas = triton.knobs.nvidia.ptxas.path
arch = re.search(r"^\.target\s+(sm_\w+)", k.asm["ptx"], re.M)[1]
print(subprocess.run([ptxas, "-v", f"--gpu-name={arch}", out/"k.ptx", "-o", out/"k.cubin"], capture_output=True, text=True).stderr)
s = subprocess.run([Path(ptxas).parent/"nvdisasm", "-c", out/"k.cubin"], capture_output=True, text=True).stdout
(out/"k.sass").write_text(s)
# segments between labels
seg, cur, order = collections.OrderedDict(), "start", []
seg[cur] = collections.Counter()
for line in s.splitlines():
    l = re.match(r"\s*(\.L_x_\d+):", line)
    if l: cur = l[1]; seg[cur] = collections.Counter(); continue
    i = re.match(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\d+ )?\s*([A-Z0-9.]+)", line)
    if i:
        op = i[2].split(".")[0]; seg[cur][op] += 1
        if op == "BRA":
            tgt = re.search(r"\.L_x_\d+", line)
            if tgt: seg[cur]["->" + tgt[0]] += 1
for n, c in seg.items():
    tot = sum(v for k, v in c.items() if not k.startswith("->"))
    if tot > 30:
        print(n, tot, {k: v for k, v in c.most_common(60) if k in ("MUFU","HGMMA","HMMA","STS","LDS","LDSM","STSM","BAR","LDL","STL","LDG","STG","SHFL","WARPGROUP","MOVM","R2UR") or k.startswith("->")})
