"""Values for the options of the command line: some that may work, and some that no one should give.

WORLD and DATA stand for the folder that `command_lines.make_world` makes, and for the data set in it.
"""

INTEGERS = [*"0 -1 2147483648 1.5 nan zz ٣ 0x10 1e3 None".split(), "9" * 30, "-" + "9" * 30, ""]
NUMBERS = ["0", "-1", "nan", "inf", "-inf", "1e309", "-0.0", "", "zz", "1,5", "None"]
TEXTS = [
    "",
    " ",
    "zz",
    "ünïcødé",
    "日本",
    "a\nb",
    "\x1b[31m",
    "*",
    "'",
    '"',
    "%s{}",
    "../..",
    "-",
    "true",
    "\udcff",
    "x" * 5000,
]
MISSING = ["missing", "", ".", "/dev/null", "n" * 300, "WORLD", "WORLD/file", "WORLD/pipe.jpg", "WORLD/empty"]
DAMAGED = [
    f"WORLD/{name}"
    for name in (
        "damaged.safetensors",
        "integers.safetensors",
        "numbers.pth",
        "damaged.onnx",
        "damaged.png",
        "list.json",
        "odd.json",
    )
]
MODELS = ["vit", "WORLD/tiny.safetensors", "WORLD/lean.safetensors"]
NO_MODELS = [*MISSING, *DAMAGED, "zz", "resnet18", "WORLD/weights.pth", "日本", "x" * 300, "vit:", "timm/zz", "-zz"]
NO_DATA = [*MISSING, "pack:WORLD/file", "pack:missing", "pack:", "hfds/zz", "wds/zz", "WORLD/*.npz", "DATA/val/a"]
NOWHERE = [
    "n" * 300,
    "n" * 250,
    "/dev/null",
    "/dev/full",
    "/proc/x",
    "/proc/x/y.json",
    "folder",
    "held/x.json",
    ".",
    "",
    "a/" * 200 + "x",
    "a\nb.svg",
    "missing/x",
    "日本/x",
]
METHODS = ["evit:at=(1,)", "repa", "evit:keep_rate=0.7,at=(0,)", "repa:idle_ratio=0.5", "riformer", "token_mixer"]
NO_METHODS = [
    f"evit:{rest}"
    for rest in (
        "keep_rate=nan",
        "keep_rate=1e999",
        "at=(99,)",
        "at=[[[",
        "",
        "=",
        "keep_rate",
        "keep_rate=0.5,keep_rate=1",
        "keep_rate=()",
        "at=((1,),)",
        "score=zz",
        "keep_rate={}",
        "tokens=-1",
    )
]
NO_METHODS += [
    "repa:idle_ratio=-1",
    "zz",
    "",
    ":",
    "sit",
    "sit:tokens=3",
    "sit:tokens=-3",
    "x" * 3000,
    "token_mixer:mixer=zz",
]
SETS = ["depth=1", "qkv_bias=0", "drop_rate=0.1", "resample_positions=1"]
NO_SETS = """
    embed_dim=7 img_size=17 img_size=0 img_size=(16,) img_size=(8,16) patch_size=0 num_heads=3 num_classes=0 mlp_ratio=0
    num_classes=-5 in_chans=1 in_chans=0 in_chans=nan name=x checkpoint=x zz=1 = depth depth=nan depth=' depth=0
    depth=-1 global_pool=zz global_pool=avg drop_path_rate=9 act_layer=zz class_token=False norm_layer=zz block_fn=1
    weight_init=zz pos_embed=zz
""".split()
GOOD = {
    "data": ["DATA"],
    "val": ["DATA/val"],
    "calibration": ["DATA"],
    "checkpoint": ["WORLD/weights.pth"],
    "compare_with": ["WORLD/result.json"],
    "classes_file": ["WORLD/classes.txt"],
    "image": ["WORLD/picture.png"],
    "runs": ["WORLD/result.json"],
    "resume": ["missing"],
    "output": ["out.json", "out.safetensors", "sub", "out.pt2", "out.png"],
    "model": MODELS,
    "result": ["sub/result.json"],
    "figure": ["a.png", "b.svg"],
    "markdown": ["out.md"],
    "profile": ["p.json"],
    "models": MODELS,
    "methods": METHODS,
    "against": [*METHODS, "evit:at=(1,)+repa"],
    "arguments": SETS,
    "versus": MODELS,
    "device": ["cpu"],
    "recipe": ["finetune:epochs=1,batch_size=2", "plain:epochs=1,batch_size=2"],
    "objective": ["cross_entropy"],
    "teachers": ["self", "WORLD/tiny.safetensors"],
    "dtypes": ["float32"],
    "dtype": ["float32"],
    "modes": ["eager"],
    "formats": ["torch"],
    "int8": ["static"],
    "runtime": ["torch"],
    "vary": ["keep_rate=0.5"],
    "split": ["val", "train"],
    "pattern": ["deit_tiny*"],
    "family": ["zz"],
    "system": ["zz"],
    "url": ["http://127.0.0.1:1"],
    "host": ["127.0.0.1"],
    "port": ["0"],
    "precision": ["no", "bf16"],
    "emit": ["triton out"],
    "size": ["16 16"],
    "preprocess": ["32 32"],
    "crop": ["0.9"],
    "kind": ["kept", "slimming", "grad-cam", "receptive-field", "features", "trade-off", "latency"],
    "nonfinite": ["stop", "skip"],
    "opset": ["20"],
    "max_queue": ["64"],
    "max_images": ["4"],
    "classes": ["2"],
}
"""Parameter of a verb → values that may work."""
BAD = {
    "data": NO_DATA,
    "val": NO_DATA,
    "calibration": NO_DATA,
    "checkpoint": MISSING + DAMAGED,
    "compare_with": MISSING + DAMAGED,
    "classes_file": MISSING + DAMAGED,
    "image": MISSING + DAMAGED,
    "runs": MISSING + DAMAGED,
    "resume": MISSING + DAMAGED,
    "output": NOWHERE,
    "result": NOWHERE,
    "figure": NOWHERE,
    "markdown": NOWHERE,
    "profile": NOWHERE,
    "methods": NO_METHODS,
    "against": NO_METHODS + NO_MODELS,
    "arguments": [*NO_SETS, ""],
    "model": NO_MODELS,
    "models": NO_MODELS,
    "versus": NO_MODELS,
    "device": ["cuda", "cuda:9", "mps", "meta", "zz", "", "cpu:99", "xla"],
    "recipe": [
        "zz",
        "",
        "finetune:",
        "plain:epochs=1,batch_size=2,zz=1",
        "finetune:epochs",
        ":",
        "plain:learning_rate=nan",
        "plain:drop_path=5",
        "plain:mixup=(",
        "plain:epochs=1e9",
    ],
    "objective": ["soft", "zz", "", "+", "soft:temperature=2", "soft:zz=1", "cross_entropy + zz", "soft:temperature"],
    "teachers": ["zz", "", "self=self", "vit", "vit:WORLD/weights.pth", "a=WORLD/file", "=:", *DAMAGED],
    "dtypes": ["zz", "int8", "", "float64"],
    "dtype": ["zz", "int8", ""],
    "modes": ["zz", ""],
    "formats": ["zz", ""],
    "int8": ["zz", ""],
    "runtime": ["zz", ""],
    "vary": ["zz=1", "", "keep_rate=", "keep_rate=9", "keep_rate=nan", "="],
    "split": ["zz", "", "../val", "*"],
    "pattern": [*TEXTS, "[", "[!"],
    "precision": ["zz", ""],
    "url": [
        "127.0.0.1",
        "",
        "ftp://x",
        "http://",
        "http://[",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1/a b",
        "http://\x00",
    ],
    "host": ["999.1.1.1", "", "zz", "::1", "\x00", "a" * 300],
    "emit": ["zz out", "triton", "triton held", "triton /proc/x"],
    "size": ["0 0", "-1 -1", "17 17", "nan 1", "1"],
    "preprocess": ["0 0", "-1 2", "zz 1"],
    "kind": ["zz", ""],
}
"""Parameter of a verb → values that cannot; other parameters get bad values by their type."""
