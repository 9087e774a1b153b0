"""Every table and figure of the five papers, with the commands that run it and the rows of results/ that are ours.

`DATA` stands for a data set as `--data` takes it, `PHOTO` for a picture, `WEIGHTS` for a file of weights. A diagram has
no command: the module that does what it shows is named instead.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Item:
    """One table or figure: what it shows, the commands that run it, and where our own numbers are."""

    number: str
    shows: str
    commands: tuple[str, ...] = ()
    ours: tuple[tuple[str, str], ...] = ()
    """Result files, each with how the rows' names begin; several beginnings are parted by |, * stands for anything."""
    remark: str = ""


def _study(name: str, only: str, more: str = "") -> str:
    return f'python -m lab study {name} --data DATA --only "{only}"{more}'


def _train(recipe: str, more: str = "") -> str:
    return f"leanformer train --recipe {recipe} --data DATA --output RUN{more}"


SELF, ANNOTATOR = " --checkpoint WEIGHTS --teacher self", " --teacher annotator=dm_nfnet_f6:WEIGHTS"
GPU = "python -m lab suite gpu --only "

EVIT = (
    Item("Table 1", "inattentive tokens removed without training",
         ("python -m lab training-free deit_small_patch16_224 --checkpoint WEIGHTS --data DATA",),
         (("study_training_free.json", "EViT 0.9 at 3,6,9|EViT 0.7 at 3,6,9|EViT 0.5 at 3,6,9"),)),
    Item("Table 2", "keep rates, with and without the fused token",
         ("leanformer tables evit", _train("evit_deit_small_0.7"), _train("evit_deit_small_0.7_no_fusion"),
          _study("evit", "table2/"), _study("vit_tiny", "EViT 0.")),
         (("study_evit.json", "table2/"), ("study_vit_tiny.json", "EViT 0.9, |EViT 0.7, |EViT 0.5, "))),
    Item("Table 3", "DeiT-B; LV-ViT-S with token labels",
         (_train("evit_deit_base_0.7"), _train("evit_lvvit_small_0.7", ANNOTATOR), _study("evit", "table3b/")),
         (("study_evit.json", "table3b/"), ("suite_gpu_h200.json", "EViT 0.7 on DeiT-B"))),
    Item("Table 4", "other places and rates at one cost",
         (_train("evit_deit_small_at_5_7_10"), _study("evit", "table4/")), (("study_evit.json", "table4/"),)),
    Item("Table 5", "450 and 600 epochs",
         (_train("evit_deit_small_0.7_450"), _train("evit_deit_small_0.7_600"),
          *(_study("evit", "table7/scratch", f" --epochs {epochs}") for epochs in (18, 24))),
         remark="the study's runs have 12 epochs where the paper's have 300; these have 1.5 and 2 times as many"),
    Item("Table 6", "larger images at the cost of smaller ones; 272 → 448",
         (_train("evit_deit_small_0.5_304"),
          *(_train(name, ANNOTATOR) for name in ("lvvit_s", "evit_lvvit_small_0.7_272")),
          "leanformer train MODEL --recipe lvvit_s_384 --data DATA --output RUN" + ANNOTATOR,
          "leanformer train MODEL --recipe evit_lvvit_small_0.7_448 --data DATA --output RUN" + ANNOTATOR,
          _study("evit", "table6a/|table6b/")), (("study_evit.json", "table6a/|table6b/"),)),
    Item("Table 7", "from a trained DeiT, the oracle",
         (*(_train(f"evit_deit_{row}", " --checkpoint WEIGHTS") for row in (
             "small_0.7_oracle", "small_0.7_oracle_450", "small_0.7_oracle_600", "base_0.7_oracle")),
          _study("evit", "table7/")),
         (("study_evit.json", "table7/"),)),
    Item("Figure 1", "answers with tokens removed at random, attentive and inattentive ones",
         ("python -m lab figure removed-tokens deit_small_patch16_224 --checkpoint WEIGHTS --image PHOTO",
          'python -m lab training-free deit_small_patch16_224 --checkpoint WEIGHTS --data DATA --only "removed"'),
         (("evit_removed_tokens.json", "removed|attentive|EViT"),)),
    Item("Figure 2, Algorithm 1", "the block", remark="diagram: `leanformer.methods.evit`"),
    Item("Figures 3, 5", "the tokens that are kept",
         ("leanformer show kept deit_small_patch16_224 --checkpoint WEIGHTS --apply evit --image PHOTO",)),
    Item("Figure 4", "accuracy against throughput",
         ("python -m lab study evit --data DATA --figure FIGURE.png", GPU + '"EViT"'),
         (("suite_gpu_h200.json", "EViT 0.7 on DeiT-S|EViT 0.5 on DeiT-S"),)),
)  # fmt: skip
SIT_REMARKS = {
    4: "the paper trains the narrower and the shallower model for 300 epochs with token labels, the others for 125: "
       "run these two alone, with 2.4 times the `--epochs`; here they learn from the plain labels",
    5: "the students are SiT-XS, made from LV-ViT+-S; the paper trains those from scratch for 300 epochs, the others "
       "for 125: run `scratch` alone, with 2.4 times the `--epochs`",
    9: "the last row is `table9/hard` with 2.4 times the `--epochs`, 300 instead of 125 in the paper",
    10: "100 epochs in the paper, instead of 125",
}  # fmt: skip
SIT = (
    Item("Table 1", "pruned DeiT-S beside SiT on it",
         ("leanformer tables sit", _train("sit_deit_s", SELF), _train("sit_deit_s_fast", SELF))),
    Item("Tables 2, 3", "the models, with and without a CNN teacher, beside others",
         ("leanformer tables sit", _train("lvvit_plus_small", ANNOTATOR), _train("sit_ti", SELF), _train("sit_s", SELF),
          _train("sit_s_cnn", SELF + " --teacher cnn=regnety_160:WEIGHTS"), GPU + '"SiT"'),
         (("suite_gpu_h200_sit.json", "SiT"), ("suite_gpu_h200_sit_xs.json", "SiT"))),
    *(
        Item(f"Table {number}", shows, (_study("sit", f"table{number}/"),), (("study_sit.json", f"table{number}/"),),
             SIT_REMARKS.get(number, ""))
        for number, shows in {
            4: "slimming against width, depth and dropping", 5: "whose knowledge: its own, CaiT's, RegNet's",
            6: "costs, by recalibration or a CNN's labels", 7: "how tokens are slimmed", 8: "how they are recalibrated",
            9: "terms of the loss", 10: "weights of the loss",
        }.items()
    ),
    Item("Figure 1a", "similarity of tokens by depth",
         ("python -m lab figure token-similarity lvvit_s --checkpoint WEIGHTS --image PHOTO",)),
    Item("Figure 1b", "attention of two tokens of the tenth block",
         ("python -m lab figure deep-attention lvvit_s --checkpoint WEIGHTS --image PHOTO",)),
    Item("Figures 1c, 7", "what patches give to the tokens that are left",
         ("leanformer show slimming MODEL --image PHOTO",)),
    Item("Figures 2, 3, 4", "the modules", remark="diagrams: `leanformer.methods.sit`"),
    Item("Figure 5a", "slimming against dropping on DeiT-S",
         ('python -m lab study sit --set backbone=deit_small_patch16_224 --data DATA --only "figure5a/"',),
         (("study_sit.json", "figure5a/"), ("study_vit_tiny.json", "SiT late, "))),
    Item("Figure 5b", "random places and ratios", (_study("sit", "figure5b/"),), (("study_sit.json", "figure5b/"),)),
    Item("Figure 6", "accuracy against throughput", ("python -m lab study sit --data DATA --figure FIGURE.png",)),
)  # fmt: skip
GUIDE = {
    1: "pooling and no mixer", 2: "distillation without an affine", 3: "distillation with one",
    4: "module imitation", 5: "teachers of the logits", 7: "imitation against features",
    8: "against a shallower and a narrower PoolFormer", 9: "other token mixers to imitate",
}  # fmt: skip
FROM_POOLFORMER = (
    "rows of `study_riformer.json` learn from GFNet-H-B's answers as the paper's do, our other rows from those of the "
    "trained PoolFormer-S12"
)
REMARKS = {
    **dict.fromkeys((2, 3, 4), FROM_POOLFORMER),
    5: "Pyramid ViG-B is in no library that we build on",
    7: f"{FROM_POOLFORMER}; those on a CPU were taken with losses relative to the teacher's features",
}
OURS_OF = {
    1: (("study_metaformers.json", "PoolFormer-S12, labels|RIFormer-S12, no affine, labels"),),
    2: (("study_metaformers.json", "RIFormer-S12, no affine"),),
    3: (("study_metaformers.json", "RIFormer-S12, labels|RIFormer-S12, hard|RIFormer-S12, soft"),),
    4: (("study_metaformers.json", "RIFormer-S12, imitation"),),
    7: (("study_riformer_cpu.json", "table7/|ours/"),),
}  # fmt: skip
"""RIFormer's table → our rows beside those of its study."""


def _guide(number: int) -> Item:
    """A table of RIFormer's guidelines."""
    logits = "" if number in (1, 5) else " --set logits=gfnet_h_b"
    ours = (("study_riformer.json", f"table{number}/"), *OURS_OF.get(number, ()))
    command = _study("riformer", f"table{number}/", logits)
    return Item(f"Table {number}", GUIDE[number], (command,), ours, REMARKS.get(number, ""))


RIFORMER = (
    *(_guide(number) for number in range(1, 6)),
    Item("Table 6", "the models, beside others",
         ("leanformer tables riformer", _train(
             "riformer_s12",
             " --checkpoint WEIGHTS --teacher gfnet_h_b:WEIGHTS --teacher imitation=poolformer_s12:WEIGHTS",
         ), "leanformer train MODEL --recipe riformer_s12_384 --data DATA --output RUN --teacher gfnet_h_b:WEIGHTS",
          GPU + '"RIFormer"'), (("suite_gpu_h200.json", "RIFormer"),)),
    *(_guide(number) for number in range(7, 10)),
    Item("Figure 1", "latency of ViT-B part by part", ("python -m lab profile",), (("profile_h200_eager.json", ""),)),
    Item("Figures 2, 3", "the block, the training", remark="diagrams: `leanformer.methods.riformer`"),
    Item("Figure 4", "effective receptive fields",
         ("leanformer show receptive-field poolformer_s12 --checkpoint WEIGHTS --versus MODEL --image PHOTO",)),
    Item("Figure 5", "distributions of features",
         ("leanformer show features poolformer_s12 --checkpoint WEIGHTS --versus MODEL --image PHOTO",)),
)  # fmt: skip
DENSE = "our own detectors are of Oxford Pets, our segmenters of CamVid"
REPA = (
    Item("Tables 1, 2", "before and after fusing, and the vanilla backbones",
         ("leanformer tables repa", _train("repa_deit_base"), _train("repa_swin_base"),
          _train("repa_lvvit_s", ANNOTATOR), GPU + '"RePa 0.75"'),
         (("suite_gpu_h200.json", "RePa 0.75 on"),
          ("study_metaformers_long.json", "RePa-PoolFormer-S12 0.75|PoolFormer-S12, distilled"),
          ("study_vit_small.json", "RePa 0.75, |RePa 0.5, "))),
    Item("Table 3", "against SLAB's progressive batch norms",
         ("leanformer tables repa", _train("slab_deit_base"), _train("slab_swin_base"), _train("repa_deit_base_0.25"),
          _train("repa_swin_base_0.25"))),
    Item("Tables 4, 8", "idle ratios",
         (_train("repa_deit_base_0.5"), _train("repa_swin_tiny_0.25"), _train("repa_poolformer_s12_0.5"),
          _study("metaformers", "RePa-PoolFormer-S12")),
         (("study_metaformers.json", "RePa-PoolFormer-S12"),
          ("study_vit_tiny.json", "RePa 0.25, |RePa 0.5, |RePa 0.75, "))),
    Item("Table 5", "backbones trained without labels",
         ("leanformer tables repa",
          *(_train(f"{idle}dino_{vit}") for vit in ("vit_small", "vit_base") for idle in ("", "repa_")),
          "leanformer eval RUN/ema.safetensors --knn 20 --linear --data DATA", "python -m lab study dino --data DATA"),
         (("study_dino.json", "ViT, DINO|RePa 0.5, DINO"),)),
    Item("Table 6", "detection and segmentation",
         ("leanformer tables repa", _train("repa_swin_small"),
          *(f"leanformer train {backbone} {dense} --data DATA --output RUN"
            for dense in ("--task detection --detector retinanet --recipe coco_1x",
                          "--task detection --detector mask_rcnn --recipe coco_1x",
                          "--task segmentation --segmenter upernet --recipe ade20k_upernet")
            for backbone in ("swin_small_patch4_window7_224 --checkpoint WEIGHTS", "MODEL")),
          "python -m lab dense", "python -m lab dense-study --pets DATA --camvid DATA"),
         (("dense_cpu.json", "*Swin"), ("study_dense.json", "*ViT-Ti")),
         f"MODEL is the backbone that `repa_swin_small` trains on ImageNet; Swin-B goes alike; {DENSE}"),
    Item("Table 7", "settings of the training", ("leanformer recipes repa",)),
    Item("Figures 1, 4", "the FFN", remark="diagrams: `leanformer.methods.repa`"),
    Item("Figure 2", "accuracy against throughput", ("leanformer show trade-off RESULT.json",)),
    Item("Figure 3", "latency by part of the model", ("python -m lab profile",), (("profile_h200_eager.json", ""),)),
)  # fmt: skip
METAFORMER = (
    Item("ImageNet table", "PoolFormers beside others",
         ("leanformer tables metaformer", _train("poolformer_s12"), _study("metaformers", "labels")),
         (("study_metaformers.json", "PoolFormer-S12, labels"),)),
    Item("Ablation of S12", "mixers, norms, activations, residual, MLP, hybrids",
         ("leanformer tables metaformer",
          *(f"leanformer train {model} --recipe poolformer_s12 --data DATA --output RUN" for model in (
              "poolformer_s12_depthwise", "poolformer_s12_batchnorm", "poolformer_s12_relu", "poolformer_s12_nomlp",
              "metaformer_ppaa_s12_224",
          )))),
    Item("COCO table", "RetinaNet and Mask R-CNN on PoolFormers",
         (*(f"leanformer train poolformer_s12 --checkpoint WEIGHTS --task detection --detector {detector} "
            "--recipe coco_1x:drop_path=0.0,weight_decay=1e-4 --data DATA --output RUN"
            for detector in ("retinanet", "mask_rcnn")),
          'python -m lab dense --only "PoolFormer"', "python -m lab dense-study --pets DATA --camvid DATA"),
         (("dense_cpu.json", "RetinaNet, PoolFormer|Mask R-CNN, PoolFormer"),
          ("study_dense.json", "RetinaNet, PoolFormer")), DENSE),
    Item("ADE20K table", "Semantic FPN on PoolFormers",
         ("leanformer train poolformer_s12 --checkpoint WEIGHTS --task segmentation --segmenter fpn "
          "--recipe dense:epochs=64,batch_size=32,learning_rate=2e-4,weight_decay=1e-4 --data DATA --output RUN",),
         (("study_dense.json", "Semantic FPN, PoolFormer"),),
         f"64 epochs are the authors' 40,000 updates of 32 pictures; {DENSE}"),
    Item("Table 7", "300 to 3,000 epochs", ("leanformer tables metaformer", _train("poolformer_s12_2000"))),
    Item("Grad-CAM", "ResNet-50, DeiT-S, ResMLP-S24, PoolFormer-S24",
         tuple(f"leanformer show grad-cam {model} --checkpoint WEIGHTS --image PHOTO" for model in (
             "resnet50", "deit_small_patch16_224", "resmlp_24_224", "poolformer_s24",
         ))),
    Item("Baselines", "IdentityFormer, RandFormer, PoolFormerV2, ConvFormer, CAFormer",
         ("leanformer tables metaformer", _train("identityformer_s12"), _train("caformer_s18"),
          "leanformer train MODEL --recipe caformer_s18_384 --data DATA --output RUN"),
         (("study_metaformers.json", "IdentityFormer|RandFormer|PoolFormerV2|ConvFormer|CAFormer"),)),
    Item("StarReLU", "activations of ConvFormer-S18 and CAFormer-S18",
         (_train("convformer_s18", " --set act=gelu --set mixer_act=gelu"),)),
)  # fmt: skip
PAPERS: dict[str, tuple[Item, ...]] = {
    "EViT (ICLR 2022)": EVIT,
    "SiT (ECCV 2022)": SIT,
    "RIFormer (CVPR 2023)": RIFORMER,
    "RePaFormer (2025)": REPA,
    "MetaFormer (CVPR 2022, TPAMI 2024)": METAFORMER,
}
